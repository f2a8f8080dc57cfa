"""Kinds of agents, their limits and their resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, Literal, Protocol, TypeVar

from pydantic import Field

from dagrpo.core.plugin_sections import Choice
from dagrpo.core.section import MOST_CHARACTERS, MOST_PROCESSES, MOST_TOKENS, Seconds, Section, Share
from dagrpo.core.user_code import NamedCode, no_named_code

if TYPE_CHECKING:
    from dagrpo.chat.renderers import ChatFormat
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session


class Limits(Choice):
    """Limits of one attempt: the keys of every agent, to which its Config adds others."""

    max_turns: Annotated[int, Field(ge=1, le=10_000)] = Field(8, description="Largest number of turns of the policy.")
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = Field(
        None,
        description="Largest number of tokens of a trajectory, with its prompt and all results; null: as many as the model supports.",
    )
    max_result_characters: Annotated[int, Field(ge=16, le=MOST_CHARACTERS)] = Field(
        2000, description="Largest number of characters of a tool's result; longer ones are cut."
    )
    keep_of_result: Literal["head", "tail", "both"] = Field(
        "both", description="Part of an over-long tool result to keep."
    )
    parallel_calls: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = Field(
        4, description="Number of calls of one turn that run at the same time; all are answered, in their order."
    )
    call_seconds: Seconds = Field(30.0, description="Time limit of one call, in seconds.")
    seconds: Seconds = Field(
        1800.0, description="Time limit of one trajectory, in seconds, without waiting for the engine."
    )
    call_retries: Annotated[int, Field(ge=0, le=100)] = Field(
        2, description="Number of retries of a call that fails through no fault of the policy."
    )
    max_excluded: Share = Field(
        0.1, description="Share of a step's trajectories that may be excluded for such failures; stop the run above it."
    )
    require_calls: bool = Field(
        True,
        description="Stop the training if its task offers tools and no trajectory calls one in the first steps.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Resources of an agent. They stay the same for as long as the agent is open."""

    chat: ChatFormat
    tools: Mapping[str, Section]  # those that the task offers, with their parameters
    folder: Path  # for what it writes: logs, and the recorded results of tools that are not repeatable
    passages: Path | None  # passages.parquet of the task, for tools that search
    max_new_tokens: int  # of one turn
    context_tokens: int  # that model and engine hold
    fresh: bool = False  # whether the model is a fresh one, whose chat template has no room for descriptions of tools
    replays: bool = False  # whether tools that are not repeatable give their recorded results, and no other ones
    wants_report: bool = False  # whether the reward is, or has a part, that the attempt's program is to report


class Agent(Protocol):
    """Agent that makes attempts, many at the same time."""

    async def __call__(self, prompt: Prompt, sample_index: int, session: Session) -> Trajectory:
        """Make one attempt. UserError and ServerError end the run; the trajectory records any other failure."""


ConfigType = TypeVar("ConfigType", bound=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentKind(Generic[ConfigType]):
    """Kind of agent, before it runs."""

    config: type[ConfigType]  # its keys in rollout.agent
    open: Callable[[ConfigType, AgentContext], AbstractAsyncContextManager[Agent]]  # UserError: it cannot run here
    # Whether it can work with these parameters, asked before any work; it takes no time. UserError says why not.
    check: Callable[[ConfigType], None] = lambda config: None
    code: Callable[[ConfigType], NamedCode] = no_named_code  # of the user's own, which its attempts depend on
    reports: Callable[[ConfigType], bool] = lambda config: (
        True
    )  # whether its attempts may say themselves what they are worth
    takes_pictures: bool = True  # whether it can make attempts at problems that show pictures
