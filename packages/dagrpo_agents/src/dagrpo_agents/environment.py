"""environment: a class whose public methods are tools, as in TRL.

`reset(**row)` begins an episode and may return text for the policy; every other public method is a tool, described by its
signature and docstring. The optional `get_reward()` returns the episode's reward, as do functions that are given the object
(in TRL's form: see `RewardFunction`). Each attempt has its own object, in this process, with all its rights.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.core.section import Texts
from dagrpo.core.user_code import NamedCode
from dagrpo.rewards.reporting import as_reward
from dagrpo.rollout.agent_loop import User, attempt
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.rollout.session import without_thoughts_of
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.tools import CallContext, InfrastructureFailure, ToolFunction
from dagrpo.tools.connections.own_code import answer_of, described, imported, trusted_result_of
from dagrpo.utils.console import say

if TYPE_CHECKING:
    from dagrpo.chat.renderers import Message, ToolSchema
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session


logger = logging.getLogger(__name__)


class SharedRandom:
    """Watcher of the module functions of `random` and `numpy.random` while some code runs."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._has_warned = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Warn if the block, which runs user code, changes a shared generator. Other attempts may run the same code meanwhile."""
        if self._has_warned:
            yield
            return
        before = _state()
        try:
            yield
        finally:
            if _state() != before:
                self._warn()

    def _warn(self) -> None:
        if self._has_warned:  # by an attempt beside this one
            return
        self._has_warned = True
        sentence = (
            f"{self._owner} draws random numbers from the module random or numpy.random, which all attempts share: two runs will "
            "differ. Draw them from random.Random(index), with the index that reset is given."
        )
        logger.warning(sentence)
        say(sentence)


def _state() -> tuple[object, ...]:
    of_numpy = np.random.get_state(legacy=False)["state"].values()  # of whatever generator numpy was given
    return random.getstate(), *(part.tobytes() if isinstance(part, np.ndarray) else part for part in of_numpy)


ENVIRONMENT_REWARD = "environment"  # the name under which an environment's own reward is reported


class Episode(User, Protocol):
    """Episode of an environment, for one attempt: a user that offers functions."""

    @property
    def functions(self) -> Sequence[ToolFunction]:
        """Return the functions that the policy may call."""

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return a call's result. Raises ToolFailure."""

    async def forget(self, trajectory: str) -> None:
        """End the calls of a trajectory."""


async def attempt_in(
    episode: Episode, limits: Limits, sample_index: int, session: Session, *, fresh: bool = False
) -> Trajectory:
    """Make one attempt, ended by an answer, the environment, a limit, or a failure that is not the policy's.

    Raises UserError if the chat template leaves out the environment's text or tools, except for a `fresh` model, which learns calls by
    chance.
    """
    own = tuple(function.schema for function in episode.functions)
    if not fresh:
        _require_tools_shown(session, own)
    return await attempt(
        session,
        sample_index,
        user=episode,
        toolbox=Toolbox({function.name: episode for function in episode.functions}, limits),
        tools=(*session.prompt.tools, *own),
        limits=limits,
    )


def _require_tools_shown(session: Session, own: Sequence[ToolSchema]) -> None:
    """Raise UserError if the chat template leaves out the environment's tools.

    Stage prepare checks the tools of a task (data/filters/prompt_length.py); those of an environment are known here first.
    """
    prompt, chat = session.prompt, session.chat
    if not own or prompt.row.demonstration:
        return
    _, without_tools = chat.prompt(prompt.row.prompt, prompt.tools)
    _, with_tools = chat.prompt(prompt.row.prompt, (*prompt.tools, *own))
    if with_tools == without_tools:
        raise UserError(
            f"The environment offers the tool {own[0]['function']['name']}, but the model's chat template does not describe tools, "
            "so that the policy would never learn of it: choose a model, or a model.chat_template, that describes tools, or set "
            "rollout.chat to {name: renderers} with the model's family."
        )


KEY = "rollout.agent.environment"
GET_REWARD = "get_reward"
OWN_METHODS = ("reset", GET_REWARD)
RewardFunction = Callable[..., Any]


class Config(Limits):
    """A class whose public methods are tools."""

    environment: str = Field("", description="Import path of the class, such as my_lab.envs:Wordle.")
    reward_functions: Texts = Field(
        [],
        description="Import paths of functions, such as my_lab.envs:score, that are called with environments=[object] and the "
        "row; each result is reported under the function's name.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """User code of an environment: its class, its tools and its reward functions."""

    factory: Callable[[], Any]  # the class
    functions: Sequence[ToolFunction]
    reward_functions: Mapping[str, RewardFunction]


class ObjectEpisode:
    """Episode in an object of the user's class."""

    over = False

    def __init__(self, environment: Any, offer: Offer, session: Session, random: SharedRandom) -> None:
        self.functions = offer.functions
        self._environment = environment
        self._reward_functions = offer.reward_functions
        self._session = session
        self._random = random

    async def opening(self, prompt: Prompt) -> str | None:
        """Call `reset` with the row and return its text, if any."""
        with self._random.watched():
            text = await trusted_result_of(self._environment.reset, _row(prompt))
        return None if text is None else str(text)

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the method's result: text unchanged, anything else as JSON. Raises ToolFailure if the method raises."""
        with self._random.watched():
            return await answer_of(getattr(self._environment, function), arguments)

    async def forget(self, trajectory: str) -> None:
        """Do nothing: the object is dropped with the attempt."""

    async def reply(self, answer: str) -> None:
        """Return None: an answer without a call ends the attempt."""

    async def rewards(self) -> Mapping[str, float]:
        """Return the rewards of `get_reward` and of the reward functions, which are finite numbers."""
        own = await self._own_reward()
        if not self._reward_functions:
            return own
        prompt = self._session.prompt
        return {**own, **await rewards_by(self._reward_functions, self._environment, _row(prompt), self._completion())}

    def _completion(self) -> list[Message]:
        """Return the messages after the prompt, the policy's without its thoughts."""
        turns = self._session.turns
        messages: list[Message] = []
        for message in turns[-1].messages[len(self._session.prompt.row.prompt) :] if turns else ():
            if message["role"] == "assistant":
                turn = turns[sum(each["role"] == "assistant" for each in messages)]
                message = {key: value for key, value in message.items() if key != "reasoning_content"}
                message["content"] = without_thoughts_of(self._session, turn, message["content"])
            messages.append(message)
        return messages

    async def _own_reward(self) -> Mapping[str, float]:
        if not hasattr(self._environment, GET_REWARD):
            return {}
        reward = await trusted_result_of(self._environment.get_reward, {})
        try:
            return {ENVIRONMENT_REWARD: as_reward(reward)}
        except (TypeError, ValueError):
            raise UserError(
                f"{type(self._environment).__name__}.get_reward() is {brief(reward)}: return a finite number below 1e30."
            ) from None


def _row(prompt: Prompt) -> dict[str, Any]:
    """Return the row as an environment and its reward functions receive it."""
    row = prompt.row
    return {
        "prompt": [dict(message) for message in row.prompt],
        "question": row.question,
        "answer": row.answer,
        "ground_truth": row.ground_truth,
        "data_source": row.data_source,
        "index": row.index,
    }


class EnvironmentAgent:
    """Agent with a separate object of the user's class for each attempt."""

    def __init__(self, config: Config, offer: Offer, *, fresh: bool) -> None:
        self._config = config
        self._fresh = fresh
        self._offer = offer
        self._random = SharedRandom(config.environment)

    async def __call__(self, prompt: Prompt, sample_index: int, session: Session) -> Trajectory:
        """Make one attempt."""
        environment = await asyncio.to_thread(self._offer.factory)
        episode = ObjectEpisode(environment, self._offer, session, self._random)
        return await attempt_in(episode, self._config, sample_index, session, fresh=self._fresh)


def offer_of(config: Config) -> Offer:
    """Return the user's code. Raises UserError if a part cannot be imported or is no environment."""
    factory, functions = methods_of(config.environment)
    rewards = reward_functions_of(config.reward_functions, f"{KEY.rpartition('.')[0]}.reward_functions")
    if ENVIRONMENT_REWARD in rewards and hasattr(factory, GET_REWARD):
        raise UserError(f"A reward function is called {ENVIRONMENT_REWARD}, as what get_reward reports: rename it.")
    return Offer(factory=factory, functions=functions, reward_functions=rewards)


def methods_of(path: str) -> tuple[type, list[ToolFunction]]:
    """Return the class, and the methods of its objects that the policy may call.

    Raises UserError if it cannot be imported or is no environment.
    """
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
    """Open the agent. Raises UserError if there is no such environment."""
    yield EnvironmentAgent(config, offer_of(config), fresh=context.fresh)


def _check(config: Config) -> None:
    offer_of(config)


def _reports(config: Config) -> bool:
    return bool(config.reward_functions) or hasattr(methods_of(config.environment)[0], GET_REWARD)


AGENT = AgentKind(
    config=Config,
    open=open_environment,
    check=_check,
    code=lambda config: NamedCode.at([config.environment, *config.reward_functions]),
    reports=_reports,
)


def reward_functions_of(paths: Sequence[str], key: str) -> dict[str, RewardFunction]:
    """Return the functions by their names.

    key: of params.yaml, where the paths stand. Raises UserError if one cannot be imported or called, or two have the same name.
    """
    functions: dict[str, RewardFunction] = {}
    for path in paths:
        function = imported(path, key)
        if not callable(function):
            raise UserError(f"{key}: {path} is not a function: name one that takes environments and **row.")
        name = getattr(function, "__name__", type(function).__name__)
        if name in functions:
            raise UserError(
                f"{key}: two functions are called {name}: rename one, since their rewards need different names."
            )
        functions[name] = function
    return functions


async def rewards_by(
    functions: Mapping[str, RewardFunction],
    environment: object,
    row: Mapping[str, Any],
    completion: Sequence[Mapping[str, Any]],
) -> dict[str, float]:
    """Return each function's reward of the attempt, without those that return None.

    Raises InfrastructureFailure if one of them raises, UserError if one returns anything but a list of one finite number.
    """
    columns = {f"{name}s" if name == "prompt" else name: [value] for name, value in row.items()}
    arguments = {**columns, "completions": [list(completion)], "environments": [environment]}
    return {
        name: reward
        for name, function in functions.items()
        if (reward := _reward(name, await trusted_result_of(function, arguments))) is not None
    }


def _reward(name: str, returned: Any) -> float | None:
    """Return the one number of a list, of any kind of list and number."""
    try:
        (reward,) = returned
        return None if reward is None else as_reward(reward)
    except (TypeError, ValueError):
        raise UserError(
            f"{name} returns {brief(returned)} for one attempt: return a list of one finite number below 1e30."
        ) from None
    except Exception as error:  # the border to other people's code: a generator works when it is read
        raise InfrastructureFailure(f"{name} raised {type(error).__name__}: {error}") from error
