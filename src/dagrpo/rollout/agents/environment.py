"""environment: a class whose public methods are tools, in the form that TRL made common.

`reset(**row)` begins an episode and may say something to the policy; every other public method is a tool, described by its
signature and docstring; `get_reward()`, where there is one, says what the episode was worth. One object per attempt, in this
process, with all its rights.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagrpo.errors import Terminated, UserError
from dagrpo.named_code import NamedCode
from dagrpo.rollout.agents import ENVIRONMENT_REWARD, Agent, AgentContext, AgentKind, Limits
from dagrpo.rollout.toolbox.described import described
from dagrpo.rollout.toolbox.own_code import answer_of, imported, result_of
from dagrpo.rollout.tools import CallContext, InfrastructureFailure, ToolFunction

if TYPE_CHECKING:
    from dagrpo.rollout.session import Session
    from dagrpo.rollout.trajectory import Problem, Trajectory

KEY = "rollout.agent.environment"
OWN_METHODS = ("reset", "get_reward")


class Config(Limits):
    """A class whose public methods are tools."""

    environment: str = Field("", description="Import path of the class, such as my_lab.envs:Wordle.")


class ObjectEpisode:
    """An episode in an object of such a class."""

    over = False

    def __init__(self, environment: Any, functions: Sequence[ToolFunction]) -> None:
        self.functions = functions
        self._environment = environment

    async def begin(self, problem: Problem) -> str | None:
        """What `reset` says to the row of the problem."""
        example = problem.example
        row = {
            "prompt": [dict(message) for message in example.prompt],
            "question": example.question,
            "answer": example.answer,
            "ground_truth": example.ground_truth,
            "data_source": example.data_source,
            "index": example.index,
        }
        said = await _trusted(self._environment.reset, row)
        return None if said is None else str(said)

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """What the method returns, a text as it is and anything else as JSON. ToolFailure: what it raised."""
        return await answer_of(getattr(self._environment, function), arguments)

    async def forget(self, trajectory: str) -> None:
        """The object goes with the attempt."""

    async def hear(self, answer: str) -> None:
        """An answer without a call ends the attempt."""

    async def rewards(self) -> Mapping[str, float]:
        """What `get_reward` says, a finite number."""
        if not hasattr(self._environment, "get_reward"):
            return {}
        reward = await _trusted(self._environment.get_reward, {})
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise UserError(f"{type(self._environment).__name__}.get_reward() is {reward!r}: return a finite number.")
        return {ENVIRONMENT_REWARD: float(reward)}


async def _trusted(method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What the policy has no part in."""
    try:
        return await result_of(method, arguments)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # the border to other people's code
        raise InfrastructureFailure(f"{method.__qualname__} raised {type(error).__name__}: {error}") from error


class EnvironmentAgent:
    """Plays every attempt in an object of its own."""

    def __init__(self, config: Config, factory: Callable[[], Any], functions: Sequence[ToolFunction]) -> None:
        self._config = config
        self._factory = factory
        self._functions = functions

    async def __call__(self, problem: Problem, sample_index: int, session: Session) -> Trajectory:
        """One attempt."""
        from dagrpo.rollout.episode import attempt_in

        episode = ObjectEpisode(await asyncio.to_thread(self._factory), self._functions)
        return await attempt_in(episode, self._config, sample_index, session)


def methods_of(path: str) -> tuple[Callable[[], Any], list[ToolFunction]]:
    """The class, and what the policy may call of its objects. UserError: it cannot be imported, or is no environment."""
    if not path:
        raise UserError(f"{KEY} is empty: name the class, such as my_lab.envs:Wordle.")
    factory = imported(path, KEY)
    if not inspect.isclass(factory) or not callable(getattr(factory, "reset", None)):
        raise UserError(f"{KEY}: {path} is not a class with a method reset(**row): name one, or add the method.")
    public = inspect.getmembers(factory, inspect.isfunction)
    tools = [method for name, method in public if not name.startswith("_") and name not in OWN_METHODS]
    return factory, [described(MethodType(method, factory)) for method in tools]  # bound, so that `self` is no argument


@asynccontextmanager
async def open_environment(config: Config, context: AgentContext) -> AsyncIterator[Agent]:
    """The agent. UserError: there is no such environment."""
    factory, functions = methods_of(config.environment)
    yield EnvironmentAgent(config, factory, functions)


def _check(config: Config) -> None:
    methods_of(config.environment)


AGENT = AgentKind(
    config=Config, open=open_environment, check=_check, code=lambda config: NamedCode.at([config.environment])
)
