"""What the policy may call, one small file each: its Config, what it does, and both as TOOL.

A task names the tools that it offers; rollout.tools gives their parameters. Not here: how a call is written (chat/), and
when it is answered (agents/).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from dagrpo.named_code import NamedCode, no_named_code
from dagrpo.params.base import Section
from dagrpo.plugins import Plugins
from dagrpo.records import Example


class ToolFailure(Exception):
    """The call could not be carried out, and the policy is to know: the message is its answer."""


class ToolTimeout(ToolFailure):
    """The call took too long."""


class InfrastructureFailure(Exception):
    """Something broke that the policy has no part in: the call is made again, and at last its trajectory excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFunction:
    """One function, as the policy is told of it."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema of type object

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI function schema, in which chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def function_of_text(name: str, description: str, argument: str, meaning: str) -> ToolFunction:
    """A function of one argument, a text that has to be given."""
    properties = {argument: {"type": "string", "description": meaning}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return ToolFunction(name=name, description=description, parameters=parameters)


def as_text(result: Any) -> str:
    """A result as the policy sees it: a text as it is, anything else as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Who calls."""

    example: Example  # the problem; only an oracle may look at its ground truth
    trajectory: str  # tells one attempt from another: what a tool keeps between calls belongs to one of them
    seed: int  # for a tool that draws random numbers: the same for the same call of the same attempt


class OpenTool(Protocol):
    """A tool that is ready to be called, by many attempts at the same time."""

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """The result, a text. Arguments fit the schema. ToolFailure, InfrastructureFailure."""
        ...

    async def forget(self, trajectory: str) -> None:
        """The attempt is over: what was kept for it is not needed any more. Also for one that never called."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlace:
    """The files of the stage that opens a tool."""

    folder: Path  # for what it writes, such as logs
    passages: Path | None  # passages.parquet of the task (columns title, text); None where the stage has none


class StatelessTool:
    """A tool that keeps nothing between calls."""

    async def forget(self, trajectory: str) -> None:
        """Nothing is kept."""


class ToolSection(Section):
    """Parameters of one tool. Its Config adds keys of its own."""


ConfigType = TypeVar("ConfigType", bound=ToolSection)


def _always(config: ToolSection) -> bool:
    return True


def _any_number(config: ToolSection) -> int | None:
    return None


def _nothing_to_check(config: ToolSection) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[ConfigType]):
    """One tool, before anything of it runs."""

    config: type[ConfigType]  # its keys in rollout.tools.<name>
    functions: Callable[[ConfigType], Sequence[ToolFunction]]  # what it offers; UserError: it cannot be asked
    # Runs it. UserError: it cannot run here, and what to install.
    open: Callable[[ConfigType, ToolPlace], AbstractAsyncContextManager[OpenTool]]
    # Whether it can work with these parameters, asked before any work; it takes no time. UserError says why not.
    check: Callable[[ConfigType], None] = _nothing_to_check
    code: Callable[[ConfigType], NamedCode] = no_named_code  # of the user's own, which its results depend on
    # It knows the ground truth: a score obtained with it says nothing about the policy.
    oracle: bool = False
    # With these parameters the same arguments give the same result, today and tomorrow. Otherwise results are recorded, and
    # replayed after a kill.
    repeatable: Callable[[ConfigType], bool] = _always
    # How many of its calls run at the same time; None: any number. Seconds that a call waits for its turn are not its own.
    parallel: Callable[[ConfigType], int | None] = _any_number


TOOLS: Plugins[Tool[Any]] = Plugins(
    what="tool",
    package=__name__,
    attribute="TOOL",
    group="dagrpo.tools",
    key="rollout.tools",
    kind=Tool,
)


def config_for(name: str, given: Mapping[str, Section]) -> Section:
    """The parameters of a tool: those of rollout.tools, or its defaults."""
    return given.get(name) or TOOLS.get(name).config()


def functions_of(names: Sequence[str], given: Mapping[str, Section]) -> dict[str, tuple[ToolFunction, ...]]:
    """What each of these tools offers. UserError: unknown, or it cannot be asked."""
    return {name: tuple(TOOLS.get(name).functions(config_for(name, given))) for name in names}


def function_schemas(names: Sequence[str], given: Mapping[str, Section]) -> tuple[dict[str, Any], ...]:
    """What chat templates are told of these tools: a schema for each function. UserError as with functions_of."""
    return tuple(function.schema for offered in functions_of(names, given).values() for function in offered)
