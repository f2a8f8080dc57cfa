"""A tool whose calls end in time. It stands below whatever records results, so that being late is recorded like any result."""

import asyncio
from collections.abc import Mapping
from typing import Any

from dagrpo.rollout.tools import CallContext, InfrastructureFailure, OpenTool, ToolTimeout


class TimedTool:
    """Gives up a call after so many seconds."""

    def __init__(self, tool: OpenTool, seconds: float) -> None:
        self._tool = tool
        self._seconds = seconds

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """What the tool says. ToolTimeout: nothing in time. InfrastructureFailure: a deadline of the tool's own has passed."""
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                return await self._tool.call(function, arguments, context)
        except TimeoutError as error:
            if deadline.expired():
                raise ToolTimeout(f"{function} gave no result within {self._seconds:g} seconds.") from None
            raise InfrastructureFailure(f"{function} failed: {error or 'a deadline of its own has passed'}.") from error

    async def forget(self, trajectory: str) -> None:
        """Tell the tool that the attempt is over."""
        await self._tool.forget(trajectory)
