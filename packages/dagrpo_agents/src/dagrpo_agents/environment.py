"""environment: a class whose public methods are tools, as in TRL.

`reset(**row)` begins an episode and may return text for the policy; every other public method is a tool, described by its
signature and docstring. The optional `get_reward()` returns the episode's reward, as do functions that are given the object
(in TRL's form: see `RewardFunction`). Each attempt has its own object, in this process, with all its rights.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.core.section import Texts
from dagrpo.core.user_code import NamedCode
from dagrpo.rewards.reporting import as_reward
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.rollout.session import without_thoughts_of
from dagrpo.tools import CallContext, InfrastructureFailure, ToolFunction
from dagrpo.tools.connections.described import described
from dagrpo.tools.connections.own_code import answer_of, imported, trusted_result_of
from dagrpo_agents.episode import ENVIRONMENT_REWARD, attempt_in
from dagrpo_agents.shared_random import SharedRandom

if TYPE_CHECKING:
    from dagrpo.chat.renderers import Message
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session

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
        turns, messages = self._session.turns, []
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
