"""An attempt, turn by turn: the policy answers, its calls are answered, and a partner has something to say, until it is over.

Every call of a turn is answered, in order, the broken ones with what is wrong about them. A call whose result nobody would
hear any more is not run, and recorded as such. Not here: who the partner is, and what a tool does (toolbox/).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dagrpo.records import Example, StopReason, ToolCall
from dagrpo.rollout.deadline import paused
from dagrpo.rollout.interactions import Interaction
from dagrpo.rollout.outcome import trajectory_of
from dagrpo.rollout.session import Session, SessionOver, Turn
from dagrpo.rollout.toolbox.toolbox import Toolbox, not_run, result_messages
from dagrpo.rollout.tools import InfrastructureFailure

if TYPE_CHECKING:
    from dagrpo.rollout.agents import Limits
    from dagrpo.rollout.chat import Message, ToolSchema
    from dagrpo.rollout.trajectory import Problem, Trajectory


class Partner(Protocol):
    """Who is there besides the policy and its tools, in one attempt. All of it raises InfrastructureFailure when it breaks."""

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        ...

    async def begin(self, problem: Problem) -> str | None:
        """What it says first, after the problem's prompt."""
        ...

    async def hear(self, answer: str) -> str | None:
        """What it says to an answer without a call; None: nothing, the attempt is over."""
        ...

    async def rewards(self) -> Mapping[str, float]:
        """What the attempt was worth to it, by name."""
        ...


class Nobody:
    """No partner: the first answer without a call is the last."""

    over = False

    async def begin(self, problem: Problem) -> str | None:
        """Nothing."""
        return None

    async def hear(self, answer: str) -> str | None:
        """Nothing."""
        return None

    async def rewards(self) -> Mapping[str, float]:
        """None."""
        return {}


@dataclass(slots=True)
class SimulatedUser(Nobody):
    """The user that a task names."""

    interaction: Interaction
    example: Example
    over: bool = False
    answers: list[str] = field(default_factory=list)

    async def hear(self, answer: str) -> str | None:
        """What the user says to all answers so far."""
        self.answers.append(answer)
        reply = self.interaction.reply(self.example, self.answers)
        self.over = reply is None
        return reply


async def attempt(
    session: Session,
    sample_index: int,
    *,
    partner: Partner,
    toolbox: Toolbox,
    tools: Sequence[ToolSchema],
    limits: Limits,
) -> Trajectory:
    """One attempt, ended by an answer, the partner, a limit, or a failure that the policy has no part in."""
    calls: list[ToolCall] = []
    rewards: Mapping[str, float] = {}
    fault = ""
    try:
        reason = await _within_limits(session, partner, toolbox, tools, limits, calls)
        async with asyncio.timeout(limits.call_seconds):
            rewards = await partner.rewards()
    except InfrastructureFailure as failure:
        reason, fault = "excluded", str(failure)
    except TimeoutError:
        reason, fault = "excluded", f"The environment named no reward within {limits.call_seconds:g} seconds."
    finally:
        await toolbox.forget(session.name)
    if session.turns and not any(call.turn == session.turns[-1].number for call in calls):
        calls += not_run(session.turns[-1])
    return trajectory_of(session, sample_index, stop_reason=reason, calls=calls, reported=rewards, fault=fault)


async def _within_limits(
    session: Session,
    partner: Partner,
    toolbox: Toolbox,
    tools: Sequence[ToolSchema],
    limits: Limits,
    calls: list[ToolCall],
) -> StopReason:
    """Why the attempt ended; `calls` grows as they are answered. InfrastructureFailure."""
    try:
        async with asyncio.timeout(limits.seconds) as deadline:
            new: Sequence[Message] = _opening(session, await partner.begin(session.problem))
            turn: Turn | None = None
            while True:
                with paused(deadline):
                    turn = await session.ask(new, turn, tools)
                if turn.answer.calls:
                    session.require_another_turn()
                    answered = await toolbox.answer(turn, session)
                    calls += answered
                    new = result_messages(turn, answered)
                elif (said := await partner.hear(turn.answer.content)) is None:
                    return _ending(partner, turn)
                else:
                    new = [{"role": "user", "content": said}]
                if partner.over:
                    return "user_done"
    except SessionOver as over:
        return over.reason
    except TimeoutError:
        return "seconds"


def _opening(session: Session, said: str | None) -> Sequence[Message]:
    """The problem's prompt, with what the partner says at the end of its last message."""
    prompt = session.problem.example.prompt
    if not said:
        return prompt
    *before, last = prompt
    return [*before, {**last, "content": last["content"] + said}]


def _ending(partner: Partner, turn: Turn) -> StopReason:
    if partner.over:
        return "user_done"
    return "turn_length" if turn.completion.finish_reason == "length" else "answered"
