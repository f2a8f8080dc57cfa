"""Tool wrapper with a timeout.

RecordedTool wraps it, so that timeouts are recorded like any result.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from dagrpo.tools import CallContext, InfrastructureFailure, OpenTool, ToolTimeout


class TimedTool:
    """Tool wrapper that gives up a call after `seconds` seconds."""

    def __init__(self, tool: OpenTool, seconds: float) -> None:
        self._tool = tool
        self._seconds = seconds

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the tool's result. Raises ToolTimeout if it is late, InfrastructureFailure if the tool's own deadline has passed."""
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
