"""Run an attempt turn by turn until it ends.

Every call of a turn is answered in order, a broken one with an explanation. A call whose result the policy would not see
is recorded as not run. Simulated users are in tools/simulated_users/, environments in agents/, tools in tool_runtime/.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dagrpo.core.types import Row, StopReason, ToolCall
from dagrpo.rollout.session import Session, SessionOver, Turn, answer_of, trajectory_of
from dagrpo.rollout.tool_runtime.toolbox import Toolbox, not_run, result_messages
from dagrpo.tools import InfrastructureFailure
from dagrpo.tools.simulated_users import Interaction

if TYPE_CHECKING:
    from dagrpo.chat.renderers import Message, ToolSchema
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.agent import Limits


class User(Protocol):
    """The party that answers the policy in one attempt, besides its tools: a simulated user, or an environment.

    Its methods raise InfrastructureFailure when it breaks.
    """

    @property
    def over(self) -> bool:
        """Return True if the user has ended the attempt."""

    async def opening(self, prompt: Prompt) -> str | None:
        """Return the user's text after the row's prompt, if any."""

    async def reply(self, answer: str) -> str | None:
        """Return the user's reply to an answer without a call; None ends the attempt."""

    async def rewards(self) -> Mapping[str, float]:
        """Return the user's rewards by name."""


class NoUser:
    """Absent user: the first answer without a call is the last."""

    over = False

    async def opening(self, prompt: Prompt) -> str | None:
        """Return None: there is no opening text."""
        return None

    async def reply(self, answer: str) -> str | None:
        """Return None: there is no reply."""
        return None

    async def rewards(self) -> Mapping[str, float]:
        """Return no rewards."""
        return {}


@dataclass(slots=True)
class SimulatedUser(NoUser):
    """Simulated user that a task names."""

    interaction: Interaction
    row: Row
    over: bool = False
    answers: list[str] = field(default_factory=list)

    async def reply(self, answer: str) -> str | None:
        """Return the user's reply to all answers so far."""
        self.answers.append(answer)
        reply = self.interaction.reply(self.row, self.answers)
        self.over = reply is None
        return reply


async def attempt(
    session: Session,
    sample_index: int,
    *,
    user: User,
    toolbox: Toolbox,
    tools: Sequence[ToolSchema],
    limits: Limits,
) -> Trajectory:
    """Make one attempt, ended by an answer, the user, a limit, or a failure that is not the policy's."""
    calls: list[ToolCall] = []
    rewards: Mapping[str, float] = {}
    fault = ""
    try:
        reason = await _within_limits(session, user, toolbox, tools, limits, calls)
        async with asyncio.timeout(limits.call_seconds):
            rewards = await user.rewards()
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
    user: User,
    toolbox: Toolbox,
    tools: Sequence[ToolSchema],
    limits: Limits,
    calls: list[ToolCall],
) -> StopReason:
    """Return why the attempt ended; `calls` grows as they are answered. Raises InfrastructureFailure."""
    try:
        async with asyncio.timeout(limits.seconds) as deadline:
            new: Sequence[Message] = _opening(session, await user.opening(session.prompt))
            turn: Turn | None = None
            while True:
                with paused(deadline):
                    turn = await session.ask(new, turn, tools)
                if turn.answer.calls:
                    session.require_another_turn()
                    answered = await toolbox.answer(turn, session)
                    calls += answered
                    new = result_messages(turn, answered)
                elif (answer := await user.reply(answer_of(session, turn))) is None:
                    return _ending(user, turn)
                else:
                    new = [{"role": "user", "content": answer}]
                if user.over:
                    return "user_done"
    except SessionOver as over:
        return over.reason
    except TimeoutError:
        return "seconds"


def _opening(session: Session, text: str | None) -> Sequence[Message]:
    """Return the row's prompt, with the user's text at the end of its last message."""
    prompt = session.prompt.row.prompt
    if not text:
        return prompt
    *before, last = prompt
    return [*before, {**last, "content": last["content"] + text}]


def _ending(user: User, turn: Turn) -> StopReason:
    if user.over:
        return "user_done"
    return "turn_length" if turn.completion.finish_reason == "length" else "answered"


@contextmanager
def paused(deadline: asyncio.Timeout) -> Iterator[None]:
    """Move the deadline by the duration of the block."""
    when, loop = deadline.when(), asyncio.get_running_loop()
    assert when is not None, "it is set whenever the policy is not asked"
    remaining = when - loop.time()
    deadline.reschedule(None)
    yield
    deadline.reschedule(loop.time() + remaining)
