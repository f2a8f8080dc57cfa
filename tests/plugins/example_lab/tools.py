"""A tool and a user of our own: a die, and somebody who asks for another throw."""

import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

from pydantic import Field

from dagrpo.core.types import Row
from dagrpo.tools import CallContext, StatelessTool, Tool, ToolFunction, ToolSection
from dagrpo.tools.simulated_users import Interaction


class Config(ToolSection):
    """A die."""

    faces: Annotated[int, Field(ge=2)] = Field(6, description="Faces of the die.")


class Dice(StatelessTool):
    """Throws by the seed of the call: the same call of the same attempt falls alike."""

    def __init__(self, config: Config) -> None:
        self._faces = config.faces

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """A number from 1."""
        return str(random.Random(context.seed).randint(1, self._faces))


def functions(config: Config) -> list[ToolFunction]:
    """One function without arguments."""
    description = f"Throw a die of {config.faces} faces."
    return [ToolFunction(name="throw", description=description, parameters={"type": "object", "properties": {}})]


def again(row: Row, answers: Sequence[str]) -> str | None:
    """Twice is enough."""
    return "Throw again." if len(answers) < 2 else None


dice = Tool(config=Config, functions=functions, open=lambda config, place: nullcontext(Dice(config)))
insistent = Interaction(reply=again)
