"""Calls of a tool as an agent makes them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
from tests.rollout.problems import task_row

from dagrpo.core.types import Row
from dagrpo.tools import TOOLS, CallContext, ToolPlace, ToolSection

NOWHERE = ToolPlace(folder=Path("/nonexistent"), passages=None)


def context(problem: Row | None = None, trajectory: str = "one") -> CallContext:
    return CallContext(row=problem or task_row(), trajectory=trajectory, seed=0)


def called(
    name: str,
    config: ToolSection | None = None,
    /,
    *,
    function: str | None = None,
    problem: Row | None = None,
    place: ToolPlace = NOWHERE,
    **arguments: Any,
) -> str:
    """What a tool answers to one call, whose arguments fit what it says of itself."""
    return asyncio.run(_called(name, config, function, problem, place, arguments))


async def _called(
    name: str,
    config: ToolSection | None,
    function: str | None,
    problem: Row | None,
    place: ToolPlace,
    arguments: Mapping[str, Any],
) -> str:
    tool = TOOLS.get(name)
    config = config or tool.config()
    offered = {offer.name: offer for offer in tool.functions(config)}
    chosen = offered[function or name]
    jsonschema.validate(arguments, chosen.parameters)
    async with tool.open(config, place) as opened:
        result = await opened.call(chosen.name, arguments, context(problem))
        await opened.forget("one")
        await opened.forget("one that never called")
        return result
