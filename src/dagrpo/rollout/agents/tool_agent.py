"""tool_agent: our own loop of turns. The policy answers, calls tools, hears their results and a simulated user, until it is done.

With neither tools nor a user it makes single turns. Every call of a turn is answered, in order, the broken ones with what
is wrong about them; what is not called any more because the attempt is over is recorded as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dagrpo.records import StopReason, ToolCall
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.rollout.deadline import paused
from dagrpo.rollout.interactions import INTERACTIONS
from dagrpo.rollout.toolbox import not_run, open_toolbox, result_messages
from dagrpo.rollout.tools import InfrastructureFailure

if TYPE_CHECKING:
    from dagrpo.rollout.session import Session, Turn
    from dagrpo.rollout.toolbox import Toolbox
    from dagrpo.rollout.trajectory import Problem, Trajectory


class Config(Limits):
    """Our own loop of turns, tools and a simulated user; a single turn where a task has neither."""


class ToolAgent:
    """Makes attempts with the tools of one task."""

    def __init__(self, toolbox: Toolbox, limits: Limits) -> None:
        self._toolbox = toolbox
        self._limits = limits

    async def __call__(self, problem: Problem, sample_index: int, session: Session) -> Trajectory:
        """One attempt, ended by an answer, a limit, or a failure of something that the policy has no part in."""
        from dagrpo.rollout.outcome import trajectory_of
        from dagrpo.rollout.session import SessionOver

        calls: list[ToolCall] = []
        fault = ""
        try:
            async with asyncio.timeout(self._limits.seconds) as deadline:
                reason = await self._converse(session, calls, deadline)
        except SessionOver as over:
            reason = over.reason
        except TimeoutError:
            reason = "seconds"
        except InfrastructureFailure as failure:
            reason, fault = "excluded", str(failure)
        finally:
            await self._toolbox.forget(session.name)
        if session.turns and not any(call.turn == session.turns[-1].number for call in calls):
            calls += not_run(session.turns[-1])
        return trajectory_of(session, sample_index, stop_reason=reason, calls=calls, fault=fault)

    async def _converse(self, session: Session, calls: list[ToolCall], deadline: asyncio.Timeout) -> StopReason:
        """Turn after turn; `calls` grows as they are answered. SessionOver, InfrastructureFailure."""
        with paused(deadline):
            turn = await session.ask(session.problem.example.prompt)
        while True:
            reply = None if turn.answer.calls else self._user_reply(session)
            if not turn.answer.calls and reply is None:
                return _ending(session, turn)
            session.require_another_turn()  # a call whose result nobody would hear is not run
            if reply is None:
                answered = await self._toolbox.answer(turn, session)
                calls += answered
                new = result_messages(turn, answered)
            else:
                new = [{"role": "user", "content": reply}]
            with paused(deadline):
                turn = await session.ask(new, turn)

    def _user_reply(self, session: Session) -> str | None:
        """What the simulated user says to the answers so far; None: nothing, or there is no user."""
        name = session.problem.example.interaction
        if not name:
            return None
        answers = [turn.answer.content for turn in session.turns if not turn.answer.calls]
        return INTERACTIONS.get(name).reply(session.problem.example, answers)


def _ending(session: Session, turn: Turn) -> StopReason:
    if session.problem.example.interaction:
        return "user_done"
    return "turn_length" if turn.completion.finish_reason == "length" else "answered"


@asynccontextmanager
async def open_tool_agent(config: Limits, context: AgentContext) -> AsyncIterator[Agent]:
    """The agent with the tools of the context's task. UserError: one of them cannot run here."""
    async with open_toolbox(config, context) as toolbox:
        yield ToolAgent(toolbox, config)


AGENT = AgentKind(config=Config, open=open_tool_agent)
