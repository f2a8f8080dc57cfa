"""An attempt in somebody else's environment: it says something first, answers calls and words, and knows what it was worth.

Calls are answered as in our own loop. Not here: what an environment is (agents/environment.py, agents/openenv.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dagrpo.records import StopReason, ToolCall
from dagrpo.rollout.deadline import paused
from dagrpo.rollout.outcome import trajectory_of
from dagrpo.rollout.session import Session, SessionOver, Turn
from dagrpo.rollout.toolbox import Toolbox, not_run, result_messages
from dagrpo.rollout.tools import CallContext, InfrastructureFailure, ToolFunction
from dagrpo.rollout.trajectory import Problem, Trajectory

if TYPE_CHECKING:
    from dagrpo.rollout.agents import Limits
    from dagrpo.rollout.chat import Message


class Episode(Protocol):
    """One episode of an environment, of one attempt alone. All of it raises InfrastructureFailure when it breaks."""

    @property
    def functions(self) -> Sequence[ToolFunction]:
        """What the policy may call."""
        ...

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do in it."""
        ...

    async def begin(self, problem: Problem) -> str | None:
        """What it says first, after the problem's prompt."""
        ...

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """A call's result. ToolFailure."""
        ...

    async def forget(self, trajectory: str) -> None:
        """Calls are over."""
        ...

    async def hear(self, answer: str) -> str | None:
        """What it says to an answer without a call; None: nothing, the attempt is over."""
        ...

    async def rewards(self) -> Mapping[str, float]:
        """What the attempt was worth, by name."""
        ...


async def attempt_in(episode: Episode, limits: Limits, sample_index: int, session: Session) -> Trajectory:
    """One attempt, ended by an answer, the environment, a limit, or a failure that the policy has no part in."""
    calls: list[ToolCall] = []
    fault = ""
    rewards: Mapping[str, float] = {}
    try:
        try:
            async with asyncio.timeout(limits.seconds) as deadline:
                reason = await _play(episode, limits, session, calls, deadline)
        except SessionOver as over:
            reason = over.reason
        except TimeoutError:
            reason = "seconds"
        async with asyncio.timeout(limits.call_seconds):
            rewards = await episode.rewards()
    except InfrastructureFailure as failure:
        reason, fault = "excluded", str(failure)
    except TimeoutError:
        reason, fault = "excluded", f"The environment named no reward within {limits.call_seconds:g} seconds."
    if session.turns and not any(call.turn == session.turns[-1].number for call in calls):
        calls += not_run(session.turns[-1])
    return trajectory_of(session, sample_index, stop_reason=reason, calls=calls, reported=rewards, fault=fault)


async def _play(
    episode: Episode, limits: Limits, session: Session, calls: list[ToolCall], deadline: asyncio.Timeout
) -> StopReason:
    """Turn after turn; `calls` grows as they are answered."""
    toolbox = Toolbox({function.name: episode for function in episode.functions}, limits)
    tools = [*session.problem.tools, *(function.schema for function in episode.functions)]
    new, turn = _opening(session, await episode.begin(session.problem)), None
    while True:
        with paused(deadline):
            turn = await session.ask(new, turn, tuple(tools))
        if turn.answer.calls:
            session.require_another_turn()
            answered = await toolbox.answer(turn, session)
            calls += answered
            new = result_messages(turn, answered)
        elif (said := await episode.hear(turn.answer.content)) is None:
            return _ending(episode, turn)
        else:
            new = [{"role": "user", "content": said}]
        if episode.over:
            return "user_done"


def _opening(session: Session, said: str | None) -> Sequence[Message]:
    """The problem's prompt, with what the environment says at the end of its last message."""
    prompt = session.problem.example.prompt
    if not said:
        return prompt
    *before, last = prompt
    return [*before, {**last, "content": last["content"] + said}]


def _ending(episode: Episode, turn: Turn) -> StopReason:
    if episode.over:
        return "user_done"
    return "turn_length" if turn.completion.finish_reason == "length" else "answered"
