"""Agents: our own loop of turns; programs and environments are in packages/dagrpo_agents.

Each agent is one small file, and talks to the policy through a session, which records every token. schedule.py sets seeds and
the order of work; session.py and chat/ handle tokens.
"""

from typing import Any

from dagrpo.core.plugins import Plugins
from dagrpo.rollout.agent import Agent, AgentContext, AgentKind, Limits

__all__ = ["AGENTS", "OWN_LOOP", "Agent", "AgentContext", "AgentKind", "Limits"]
OWN_LOOP = "tool_agent"  # whose attempts have one turn where a problem has neither tools nor a user
AGENTS: Plugins[AgentKind[Any]] = Plugins(
    what="agent",
    package=__name__,
    attribute="AGENT",
    group="dagrpo.agents",
    key="rollout.agent.name",
    kind=AgentKind,
    packaged=dict.fromkeys(("environment", "openenv", "program", "verifiers"), "dagrpo[agents]"),
)
