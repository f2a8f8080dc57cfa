"""tool_agent: our own loop, with a task's tools and simulated user.

Without either it makes single turns. rollout/agent_loop.py implements a turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.tools.simulated_users import INTERACTIONS

if TYPE_CHECKING:
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session
    from dagrpo.rollout.tool_runtime.toolbox import Toolbox


class Config(Limits):
    """Our own loop of turns, tools and a simulated user; a single turn where a task has neither."""


class ToolAgent:
    """Agent that makes attempts with the tools of one task."""

    def __init__(self, toolbox: Toolbox, limits: Limits) -> None:
        self._toolbox = toolbox
        self._limits = limits

    async def __call__(self, prompt: Prompt, sample_index: int, session: Session) -> Trajectory:
        """Make one attempt."""
        from dagrpo.rollout.agent_loop import NoUser, SimulatedUser, attempt

        row = prompt.row
        user = SimulatedUser(INTERACTIONS.get(row.interaction), row) if row.interaction else NoUser()
        return await attempt(
            session, sample_index, user=user, toolbox=self._toolbox, tools=prompt.tools, limits=self._limits
        )


@asynccontextmanager
async def open_tool_agent(config: Limits, context: AgentContext) -> AsyncIterator[Agent]:
    """Open the agent with the tools of the context's task. Raises UserError if one of them cannot run here."""
    from dagrpo.rollout.tool_runtime.toolbox import open_toolbox

    async with open_toolbox(config, context) as toolbox:
        yield ToolAgent(toolbox, config)


AGENT = AgentKind(config=Config, open=open_tool_agent, reports=lambda config: False)
