"""An open agent is closed whatever happens while it is at work."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.scripted_chat import ScriptedChat
from tests.rollout.talking import Echo, TalkingEngine, attempts, tool_problem

from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout import open_agent as module
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.rollout.agents.tool_agent import Config, ToolAgent
from dagrpo.rollout.open_agent import AgentEnv, OpenAgent, open_agent
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.tools import CallContext


@dataclass
class Conversation:
    agent: Config
    tools: Mapping[str, Any]
    chat: None = None


@pytest.mark.parametrize("lockstep", [True, False])
def test_ctrl_c_within_a_call_leaves_no_task_and_no_open_tool(monkeypatch: pytest.MonkeyPatch, lockstep: bool) -> None:
    seen: list[str] = []

    async def call(arguments: Mapping[str, Any], context: CallContext) -> str:
        try:
            await asyncio.sleep(0.01)
            if "struck" not in seen:
                seen.append("struck")
                raise KeyboardInterrupt
            await asyncio.sleep(60)
            return ""
        finally:
            seen.append("call over")

    @asynccontextmanager
    async def opened(limits: Limits, context: AgentContext) -> AsyncIterator[Agent]:
        try:
            yield ToolAgent(Toolbox({"echo": Echo(call)}, limits), limits)
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    monkeypatch.setattr(module, "AGENTS", {"tool_agent": AgentKind(config=Config, open=opened)})
    monkeypatch.setattr(module, "chat_format", lambda tokenizer, config: ScriptedChat())
    conversation: Any = Conversation(agent=Config(name="tool_agent"), tools={})
    around = AgentEnv(folder=Path(), passages=None, max_new_tokens=80, context_tokens=1000)
    kept: list[OpenAgent] = []
    with pytest.raises(KeyboardInterrupt), open_agent(conversation, character_tokenizer(64), (), around) as agent:
        kept.append(agent)
        engine = TalkingEngine(lambda said: "@echo{}@echo{}")
        attempts(engine, agent, [tool_problem(0, "a"), tool_problem(1, "b")], lockstep=lockstep)
    assert seen == ["struck", *4 * ["call over"], "closed"]
    assert kept[0]._loop.is_closed()
