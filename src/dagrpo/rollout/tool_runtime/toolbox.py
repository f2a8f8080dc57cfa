"""Toolbox of one task: dispatch, deadlines, retries and length limits.

A wrong call is answered with an explanation. A call that fails through no fault of the policy is made again, and in the end raises.
Agents decide when calls are answered (agents/).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagrpo.chat.tool_calls.checks import unknown_tool
from dagrpo.core.errors import UserError
from dagrpo.core.types import CallStatus, ToolCall
from dagrpo.engine.background import all_of
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.rollout.tool_runtime.recorded_tool import MissingTool, RecordedTool, TimedTool
from dagrpo.tools import (
    TOOLS,
    CallContext,
    InfrastructureFailure,
    OpenTool,
    StatelessTool,
    ToolFailure,
    ToolPlace,
    ToolTimeout,
)

if TYPE_CHECKING:
    from dagrpo.chat.renderers import Message, ParsedCall
    from dagrpo.rollout.agent import AgentContext, Limits
    from dagrpo.rollout.session import Session, Turn


NO_SLOTS: Mapping[str, asyncio.Semaphore] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    status: CallStatus
    result: str


class Toolbox:
    """Open tools by the names of their functions."""

    def __init__(
        self,
        functions: Mapping[str, OpenTool],
        limits: Limits,
        slots: Mapping[str, asyncio.Semaphore] = NO_SLOTS,
        replayed: Collection[str] = (),
    ) -> None:
        """Collect open tools.

        slots: the number of calls of a function that may run at the same time, if limited. replayed: functions with results that are cut.
        """
        self._functions = functions
        self._limits = limits
        self._slots = slots
        self._replayed = replayed

    async def answer(self, turn: Turn, session: Session) -> list[ToolCall]:
        """Return every call of a turn with its result, in order. Raises InfrastructureFailure if one fails again and again."""
        slots = asyncio.Semaphore(self._limits.parallel_calls)

        async def one(index: int, call: ParsedCall) -> ToolCall:
            async with slots:
                start = time.perf_counter()
                outcome = await self._outcome(call, _context(session, turn, index))
                is_cut = call.name in self._replayed and outcome.status in ("ok", "failed", "timed_out")
                text = outcome.result if is_cut else shortened(outcome.result, self._limits)
                return replace(_recorded(turn, call, outcome.status), result=text, seconds=time.perf_counter() - start)

        return await all_of(one(index, call) for index, call in enumerate(turn.answer.calls))

    async def _outcome(self, call: ParsedCall, context: CallContext) -> _Outcome:
        if call.status != "ok":
            return _Outcome(status=call.status, result=call.fault)
        tool = self._functions.get(call.name)
        if tool is None:
            return _Outcome(status="unknown_tool", result=unknown_tool(call.name, self._functions))
        try:
            async with self._slots.get(call.name, nullcontext()):
                return _Outcome(status="ok", result=await self._called(tool, call, context))
        except ToolTimeout as failure:
            return _Outcome(status="timed_out", result=str(failure))
        except ToolFailure as failure:
            return _Outcome(status="failed", result=str(failure))

    async def _called(self, tool: OpenTool, call: ParsedCall, context: CallContext) -> str:
        for attempt in range(self._limits.call_retries + 1):
            try:
                return await _result(tool, call, context)
            except InfrastructureFailure:
                if attempt == self._limits.call_retries:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def forget(self, trajectory: str) -> None:
        """Tell every tool that the attempt is over."""
        for tool in {id(tool): tool for tool in self._functions.values()}.values():
            await tool.forget(trajectory)


async def _result(tool: OpenTool, call: ParsedCall, context: CallContext) -> str:
    """Return the tool's result. Raises UserError if it is no text, InfrastructureFailure if the call was cancelled, but not by us."""
    try:
        result: object = await tool.call(call.name, call.arguments, context)
    except asyncio.CancelledError as error:  # libraries with cancel scopes let one through when their connection ends
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise InfrastructureFailure(f"A call of {call.name} was cancelled.") from error
    if not isinstance(result, str):
        raise UserError(
            f"the tool {call.name} returned {type(result).__name__}: its method `call` has to return a text."
        )
    return result


def _context(session: Session, turn: Turn, index: int) -> CallContext:
    seed = sampling_seed(session.seed, "call", turn.number, index)
    return CallContext(row=session.prompt.row, trajectory=session.name, seed=seed)


def _recorded(turn: Turn, call: ParsedCall, status: CallStatus) -> ToolCall:
    return ToolCall(turn=turn.number, name=call.name, arguments=call.recorded_arguments, status=status, result="")


def not_run(turn: Turn) -> list[ToolCall]:
    """Return the records of a turn's calls after which the attempt was over."""
    return [_recorded(turn, call, "not_run") for call in turn.answer.calls]


def result_messages(turn: Turn, calls: Sequence[ToolCall]) -> list[Message]:
    """Return the chat messages with the results of the calls, in their order."""
    requests = turn.messages[-1].get("tool_calls") or ()
    identities = [call.get("id", f"call_{index}") for index, call in enumerate(requests)]
    identities += [f"call_{index}" for index in range(len(identities), len(calls))]
    return [
        {"role": "tool", "content": call.result, "tool_call_id": identity, "name": call.name}
        for call, identity in zip(calls, identities, strict=False)
    ]


def shortened(text: str, limits: Limits) -> str:
    """Return a result within max_result_characters, with a note where something was left out."""
    most = limits.max_result_characters
    if len(text) <= most:
        return text
    head = {"head": most, "tail": 0, "both": most - most // 2}[limits.keep_of_result]
    note = f"[{len(text) - most} characters left out]"
    return f"{text[:head]}{note}{text[len(text) - (most - head) :]}"


@asynccontextmanager
async def open_toolbox(limits: Limits, context: AgentContext) -> AsyncIterator[Toolbox]:
    """Open the tools of an agent's context. Raises UserError if one cannot run here, or two offer the same function."""
    place = ToolPlace(folder=context.folder, passages=context.passages)
    functions: dict[str, OpenTool] = {}
    slots: dict[str, asyncio.Semaphore] = {}
    replayed = set[str]()
    async with AsyncExitStack() as stack:
        for name, config in context.tools.items():
            kind = TOOLS.get(name)
            is_missing = context.replays and not kind.repeatable(config)
            opening = nullcontext(MissingTool()) if is_missing else kind.open(config, place)
            opened = await stack.enter_async_context(opening)
            tool: OpenTool = TimedTool(opened, limits.call_seconds)
            if not kind.repeatable(config):
                records = context.folder / f"{TOOLS.label(name)}.results.jsonl"
                stateless = isinstance(opened, StatelessTool)
                tool = stack.enter_context(RecordedTool(tool, records, stateless=stateless))
            for function in kind.functions(config):
                if function.name in functions:
                    raise UserError(f"two tools offer the function {function.name}: leave {name} out, or rename it.")
                functions[function.name] = tool
                replayed |= {function.name} if is_missing else set()
                if (most := kind.parallel(config)) is not None:
                    slots[function.name] = asyncio.Semaphore(most)
        yield Toolbox(functions, limits, slots, replayed)
