"""Open an agent, with its tools, on a separate event loop.

Its tools and programs run for as long as it is open; the loop is paused between two batches. agents/ implements the agents, schedule.py
the order of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import ChatFormat, chat_format
from dagrpo.core.trajectory import Prompt
from dagrpo.models.tokenizer import tells_of_no_tools
from dagrpo.rollout.agents import AGENTS, Agent, AgentContext, Limits
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.session import Complete, Session, SessionLimits
from dagrpo.tools import config_for
from dagrpo.utils.tables import read_parquet

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnv:
    """Environment of an agent in one stage: folders and limits that are not parameters."""

    folder: Path  # for what the agent and its tools write
    passages: Path | None  # of the task, for tools that search
    max_new_tokens: int  # of one turn
    context_tokens: int  # that model and engine hold
    replays: bool = False  # as in AgentContext
    wants_report: bool = False  # whether the reward asks what the attempt's program reports


class OpenAgent:
    """Open agent, with its event loop."""

    def __init__(self, agent: Agent, chat: ChatFormat, limits: SessionLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.make_attempt = agent
        self._chat = chat
        self._limits = limits
        self._loop = loop
        self._running: asyncio.Task[Any] | None = None

    def session(self, prompt: Prompt, complete: Complete, seed: int, name: str) -> Session:
        """Return a new session of the policy for a prompt."""
        return Session(prompt=prompt, chat=self._chat, complete=complete, limits=self._limits, seed=seed, name=name)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` to its end, or to Ctrl-C, which is raised at once.

        asyncio.run would turn it into a cancellation, which a wave that waits for its engine takes for a fault.
        """
        return run_on(self._loop, self._noted(work))

    def interrupt(self) -> None:
        """Cancel the work that another thread runs here, which gets a CancelledError; no effect if nothing runs."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _noted(self, work: Coroutine[Any, Any, Result]) -> Result:
        self._running = asyncio.current_task()
        try:
            return await work
        finally:
            self._running = None


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`. If it fails, its unfinished part is cancelled; other tasks of the loop are not."""
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    except BaseException as stop:
        task.cancel()
        _wait_for(task, loop, stop)
        raise


def _wait_for(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, stop: BaseException | None = None) -> None:
    """Wait until the task has ended, whatever it raises. A second Ctrl-C is raised.

    A Ctrl-C within a task is raised again by each task that waits for that one: the same exception, `stop`.
    """
    while not task.done():
        try:
            loop.run_until_complete(asyncio.wait([task]))
        except (KeyboardInterrupt, SystemExit) as again:
            if again is not stop:
                raise
    if not task.cancelled():
        task.exception()  # asyncio complains about an exception that is never retrieved


def only_passages(paths: Sequence[Path]) -> Path | None:
    """Return the passages of the only one of some tasks that has any; None if several have some."""
    found = [path for path in paths if read_parquet(path).num_rows] if len(paths) > 1 else paths
    return found[0] if len(found) == 1 else None


@contextmanager
def open_agent(
    conversation: Conversation, tokenizer: PreTrainedTokenizerBase, tools: tuple[str, ...], env: AgentEnv
) -> Iterator[OpenAgent]:
    """Open the agent of section rollout, with these tools. Raises UserError, with a remedy, if a part of it cannot run here."""
    chat = chat_format(tokenizer, conversation.chat)
    kind, limits = AGENTS.get(conversation.agent.name), conversation.agent
    context = AgentContext(
        chat=chat,
        tools={name: config_for(name, conversation.tools) for name in tools},
        folder=env.folder,
        passages=env.passages,
        max_new_tokens=env.max_new_tokens,
        context_tokens=env.context_tokens,
        fresh=tells_of_no_tools(tokenizer),
        replays=env.replays,
        wants_report=env.wants_report,
    )
    loop = asyncio.new_event_loop()
    keeper = _Keeper(lambda: kind.open(limits, context))
    keeping = loop.create_task(keeper.keep())
    try:
        agent = run_on(loop, keeper.opened(keeping))
        yield OpenAgent(agent, chat, _session_limits(limits, env), loop)
    finally:
        keeper.closing.set()
        try:
            _wait_for(keeping, loop)
            run_on(loop, _cancel_all(loop))
        finally:
            loop.close()


class _Keeper:
    """Task that both opens and closes an agent, as libraries with cancel scopes require."""

    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[Agent]]) -> None:
        self.closing = asyncio.Event()
        self._open = open_it
        self._ready = asyncio.Event()
        self._agent: Agent | None = None

    async def keep(self) -> None:
        """Open the agent, wait until it is to be closed, and close it."""
        async with self._open() as self._agent:
            self._ready.set()
            await self.closing.wait()

    async def opened(self, keeping: asyncio.Task[None]) -> Agent:
        """Return the agent. Raises the error of opening it."""
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait([ready, keeping], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._agent is None:
            await keeping
        assert self._agent is not None, "it is open, or opening it has raised"
        return self._agent


def _session_limits(limits: Limits, env: AgentEnv) -> SessionLimits:
    most = env.context_tokens if limits.max_tokens is None else min(limits.max_tokens, env.context_tokens)
    return SessionLimits(turns=limits.max_turns, tokens=most, new_tokens=env.max_new_tokens)


async def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
