"""Tools that the policy may call, one small file each.

A file has its Config, its code, and both as TOOL. A task names the tools that it offers; rollout.tools gives their parameters. chat/
has the syntax of calls, and agents/ decides when they are answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from dagrpo.core.plugins import Plugins
from dagrpo.core.section import Section
from dagrpo.core.types import Row
from dagrpo.core.user_code import NamedCode, no_named_code


class ToolFailure(Exception):
    """Failure of a call that the policy learns about: the message is its result."""


class ToolTimeout(ToolFailure):
    """Timeout of a call."""


class InfrastructureFailure(Exception):
    """Failure that is not the policy's: the call is made again, and at last its trajectory excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFunction:
    """Description of one function for the policy."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema of type object

    @property
    def schema(self) -> dict[str, Any]:
        """Return the OpenAI function schema, as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def function_of_text(name: str, description: str, argument: str, meaning: str) -> ToolFunction:
    """Return a function of one required argument, a text."""
    properties = {argument: {"type": "string", "description": meaning}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return ToolFunction(name=name, description=description, parameters=parameters)


def as_text(result: Any) -> str:
    """Return a result as text for the policy: text unchanged, anything else as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Context of a call."""

    row: Row  # of the trajectory; only an oracle may look at its ground truth
    trajectory: str  # tells one attempt from another: what a tool keeps between calls belongs to one of them
    seed: int  # for a tool that draws random numbers: the same for the same call of the same attempt


class OpenTool(Protocol):
    """Open tool that many attempts may call at the same time."""

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the result as text. Arguments fit the schema. Raises ToolFailure or InfrastructureFailure."""

    async def forget(self, trajectory: str) -> None:
        """Drop the state of an attempt that has ended. Also called for an attempt without calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlace:
    """Files of the stage that opens a tool."""

    folder: Path  # for what it writes, such as logs
    passages: Path | None  # passages.parquet of the task (columns title, text); None where the stage has none


class StatelessTool:
    """Base of tools without state between calls."""

    async def forget(self, trajectory: str) -> None:
        """Do nothing: there is no state."""


class ToolSection(Section):
    """Parameters of one tool. Its Config adds others."""


ConfigType = TypeVar("ConfigType", bound=ToolSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[ConfigType]):
    """Tool before it runs."""

    config: type[ConfigType]  # its keys in rollout.tools.<name>
    functions: Callable[[ConfigType], Sequence[ToolFunction]]  # what it offers; UserError: it cannot be asked
    # Runs it. UserError: it cannot run here, and what to install.
    open: Callable[[ConfigType, ToolPlace], AbstractAsyncContextManager[OpenTool]]
    # Whether it can work with these parameters, asked before any work; it takes no time. UserError says why not.
    check: Callable[[ConfigType], None] = lambda config: None
    code: Callable[[ConfigType], NamedCode] = no_named_code  # of the user's own, which its results depend on
    files: Callable[[ConfigType], list[str]] = lambda config: []  # paths whose content is part of the stage's identity
    # It knows the ground truth: a score obtained with it says nothing about the policy.
    oracle: bool = False
    # With these parameters the same arguments give the same result, today and tomorrow. Otherwise results are recorded, and
    # replayed after a kill.
    repeatable: Callable[[ConfigType], bool] = lambda config: True
    # How many of its calls run at the same time; None: any number. Seconds that a call waits for its turn are not its own.
    parallel: Callable[[ConfigType], int | None] = lambda config: None


TOOLS: Plugins[Tool[Any]] = Plugins(
    what="tool",
    package=__name__,
    attribute="TOOL",
    group="dagrpo.tools",
    key="rollout.tools",
    kind=Tool,
    packaged={"mcp": "dagrpo[agents]"},
)


def config_for(name: str, sections: Mapping[str, Section]) -> Section:
    """Return the parameters of a tool: those of rollout.tools, or its defaults."""
    return sections.get(name) or TOOLS.get(name).config()


def functions_of(names: Sequence[str], sections: Mapping[str, Section]) -> dict[str, tuple[ToolFunction, ...]]:
    """Return the functions of each of these tools. Raises UserError if one is unknown, or cannot be asked."""
    return {name: tuple(TOOLS.get(name).functions(config_for(name, sections))) for name in names}


def function_schemas(names: Sequence[str], sections: Mapping[str, Section]) -> tuple[dict[str, Any], ...]:
    """Return a schema for each function of these tools, for chat templates. Raises UserError as functions_of does."""
    return tuple(function.schema for offered in functions_of(names, sections).values() for function in offered)
