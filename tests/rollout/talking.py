"""Attempts without a model, a tokenizer or a server: an engine that follows a script, and tools that follow another."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.rollout.problems import task_row
from tests.rollout.scripted_chat import END, ScriptedChat, ids, text_of
from tests.rollout.scripted_engine import ScriptedEngine

from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.rollout.agents.tool_agent import Config, ToolAgent
from dagrpo.rollout.collect import collect
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.session import SessionLimits
from dagrpo.rollout.tool_runtime.recorded_tool import TimedTool
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.tools import CallContext, OpenTool, StatelessTool, ToolFunction

ECHO = ToolFunction(name="echo", description="Says it again.", parameters={"type": "object"})
SAMPLING = Sampling(samples=1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=80, lockstep=True)

Script = Callable[[str], str]  # what was said so far -> the policy's next turn; a turn that is cut off ends in "…"


class TalkingEngine(ScriptedEngine):
    """Says what its script says. Each token's logprob is minus its place in the answer."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script

    def generate(self, requests: Sequence[SamplingRequest], **waves: Any) -> list[Completion]:
        super().generate(requests, **waves)
        return [self._said(request) for request in requests]

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        await super().complete(request, session, abortable=abortable)
        return self._said(request)

    def _said(self, request: SamplingRequest) -> Completion:
        said = self.script(text_of(request.input_ids))
        tokens = ids(said[:-1] if said.endswith("…") else said + END)[: request.max_new_tokens]
        cut = tokens[-1] != ord(END)
        return Completion(
            token_ids=tokens,
            logprobs=tuple(-float(place) for place in range(1, len(tokens) + 1)),
            finish_reason="length" if cut else "stop",
            weight_version="v",
            cached_tokens=7,
        )


@dataclass
class Echo(StatelessTool):
    """Answers with its argument `text`, or does what `behaviour` says."""

    behaviour: Callable[[Mapping[str, Any], CallContext], Any] | None = None
    forgotten: list[str] = field(default_factory=list)

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        if self.behaviour is None:
            return str(arguments.get("text", ""))
        result = self.behaviour(arguments, context)
        return str(await result if asyncio.iscoroutine(result) else result)

    async def forget(self, trajectory: str) -> None:
        self.forgotten.append(trajectory)


def tool_problem(index: int = 0, question: str = "q", **changes: Any) -> Prompt:
    """A problem that offers `echo`, rendered by ScriptedChat."""
    one = task_row(question, tools=("echo",), **changes)
    text, token_ids = ScriptedChat().prompt(one.prompt, ())
    return Prompt(index=index, row=one, text=text, token_ids=token_ids, tools=(ECHO.schema,))


@contextmanager
def agent_with(
    tools: Mapping[str, OpenTool], *, chat: ScriptedChat | None = None, tokens: int = 1000, **limits: Any
) -> Iterator[OpenAgent]:
    """Our own loop over the scripted chat, with these tools by the names of their functions."""
    config = Config(name="tool_agent", **limits)
    timed = {name: TimedTool(tool, config.call_seconds) for name, tool in tools.items()}
    agent = ToolAgent(Toolbox(timed, config), config)
    most = SessionLimits(turns=config.max_turns, tokens=tokens, new_tokens=SAMPLING.max_new_tokens)
    loop = asyncio.new_event_loop()
    try:
        yield OpenAgent(agent, chat or ScriptedChat(), most, loop)
    finally:
        loop.close()


def attempts(
    engine: ScriptedEngine, agent: OpenAgent, problems: Sequence[Prompt], *, lockstep: bool = True
) -> list[Trajectory]:
    """One attempt at each problem."""
    return collect(
        problems,
        replace(SAMPLING, lockstep=lockstep),
        lambda position, sample: position + 1,
        engine=engine,
        agent=agent,
    )
