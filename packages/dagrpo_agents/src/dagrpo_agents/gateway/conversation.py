"""Match a program's requests, whole conversations, with the turns of a session."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagrpo.chat.renderers import Message, ParsedCall
from dagrpo.core.errors import UserError
from dagrpo.core.types import StopReason, ToolCall
from dagrpo.core.untrusted_json import read_json
from dagrpo.engine.errors import ServerError
from dagrpo.rollout.session import Session, SessionOver, Turn, without_thoughts_of
from dagrpo_agents.gateway.requests import ChatRequest, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Turn in the form for a program."""

    turn: Turn
    message: Mapping[str, Any]


def reply_of(session: Session, turn: Turn) -> Reply:
    """Return the assistant's message, for the program and for recognising it when it comes back.

    Its content has no thought, and the calls that cannot be parsed, so that none is lost.
    """
    answer = turn.answer
    content = without_thoughts_of(session, turn, answer.content)
    unreadable = [call.raw for call in answer.calls if not call.is_readable]
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(filter(None, [content, *unreadable]))}
    if thinking := answer.thinking or (
        "" if content == answer.content else answer.content.strip().removesuffix(content)
    ):
        message["reasoning_content"] = thinking
    if calls := readable_calls(turn):
        message["tool_calls"] = [_call(call_id, call) for call_id, call in calls]
        message["content"] = message["content"] or None
    return Reply(turn=turn, message=message)


def readable_calls(turn: Turn) -> list[tuple[str, ParsedCall]]:
    """Return the calls that a program can carry out or refuse, with their ids."""
    return [(f"call_{turn.number}_{place}", call) for place, call in enumerate(turn.answer.calls) if call.is_readable]


def _call(call_id: str, call: ParsedCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def completion(reply: Reply, request: ChatRequest) -> dict[str, Any]:
    """Return the whole chat completion."""
    choice = {
        "index": 0,
        "message": reply.message,
        "finish_reason": _finish_reason(reply),
        "token_ids": reply.turn.completion.token_ids,
        "logprobs": _logprobs(reply.turn) if request.logprobs else None,
    }
    return {
        **_head(reply, request, "chat.completion"),
        "prompt_token_ids": reply.turn.prompt,
        "choices": [choice],
        "usage": _usage(reply.turn),
    }


def events(reply: Reply, request: ChatRequest) -> bytes:
    """Return the chat completion as a stream of events."""
    lines = [json.dumps(chunk) for chunk in _chunks(reply, request)]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def _chunks(reply: Reply, request: ChatRequest) -> Iterator[dict[str, Any]]:
    head = _head(reply, request, "chat.completion.chunk")
    delta = dict(reply.message)
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    delta = {
        "index": 0,
        "delta": delta,
        "finish_reason": None,
        "token_ids": reply.turn.completion.token_ids,
        "logprobs": _logprobs(reply.turn) if request.logprobs else None,
    }
    yield {**head, "prompt_token_ids": reply.turn.prompt, "choices": [delta]}
    end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(reply)}]}
    usage = _usage(reply.turn)
    if not request.usage_chunk:
        yield {**end, "usage": usage}
        return
    yield end
    yield {**head, "choices": [], "usage": usage}


def _head(reply: Reply, request: ChatRequest, kind: str) -> dict[str, Any]:
    number = reply.turn.number
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(time.time()), "model": request.model}


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.message.get("tool_calls") else reply.turn.completion.finish_reason


def _logprobs(turn: Turn) -> dict[str, Any]:
    pairs = zip(turn.completion.token_ids, turn.completion.logprobs, strict=True)
    return {"content": [_logprob(token, logprob) for token, logprob in pairs], "refusal": None}


def _logprob(token: int, logprob: float) -> dict[str, Any]:
    return {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}


def _usage(turn: Turn) -> dict[str, Any]:
    prompt, completion = len(turn.prompt), len(turn.completion.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": turn.completion.cached_tokens},
    }


OVER = {
    "max_turns": "the attempt has used up its turns",
    "max_tokens": "the conversation has used up its tokens",
    "template_refused": "the model's chat template refuses what was said",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """Turn, with the identities of the messages that lead to it."""

    reply: Reply
    messages: tuple[tuple[Any, ...], ...]  # identities, that of the answer at the end
    tools: str


class Conversation:
    """Conversation that finds the earlier turns in a request, and asks the session for the rest. One request at a time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.over: StopReason | None = None  # why there will be no further turn, once a program got that answer
        self._exchanges: list[_Exchange] = []
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, request: ChatRequest) -> Reply:
        """Return the policy's turn. Raises Refused if the attempt is over, or the chat template refuses these messages."""
        async with self._one_at_a_time:
            if not self.session.may_fit(request.characters):
                raise self._no_further_turn("max_tokens")
            messages, tools = tuple(map(_identity, request.messages)), json.dumps(request.tools, sort_keys=True)
            if request.again and (lost := self._same(messages, tools)):
                return lost.reply
            earlier = self._longest_beginning(messages, tools)
            new = request.messages[len(earlier.messages) :] if earlier else request.messages
            reply = reply_of(self.session, await self._ask(request, new, earlier.reply.turn if earlier else None))
            self._exchanges.append(_Exchange(reply=reply, messages=(*messages, _identity(reply.message)), tools=tools))
            return reply

    async def _ask(self, request: ChatRequest, new: Sequence[Message], after: Turn | None) -> Turn:
        try:
            return await self.session.ask(new, after, request.tools, most=request.most)
        except SessionOver as over:
            raise self._no_further_turn(over.reason) from None
        except ServerError:
            raise
        except UserError as error:
            raise Refused(f"messages: {error}") from None

    def _no_further_turn(self, reason: StopReason) -> Refused:
        self.over = reason
        return Refused(f"{OVER.get(reason, reason)}.", code=reason)

    def _longest_beginning(self, messages: tuple[Any, ...], tools: str) -> _Exchange | None:
        """Return the turn whose conversation is the longest beginning of this one; the newest of several."""
        beginnings = [
            exchange
            for exchange in reversed(self._exchanges)
            if exchange.tools == tools
            and len(exchange.messages) < len(messages)
            and messages[: len(exchange.messages)] == exchange.messages
        ]
        return max(beginnings, key=lambda exchange: len(exchange.messages), default=None)

    def _same(self, messages: tuple[Any, ...], tools: str) -> _Exchange | None:
        """Return the newest turn that answered the same conversation."""
        answers = (
            exchange
            for exchange in reversed(self._exchanges)
            if exchange.tools == tools and exchange.messages[:-1] == messages
        )
        return next(answers, None)

    def calls(self) -> list[ToolCall]:
        """Return every call of the policy, with the result that the program gave it."""
        results: dict[str, str] = {}
        for turn in self.session.turns:
            for message in turn.messages:
                if message["role"] == "tool":
                    results.setdefault(str(message.get("tool_call_id")), str(message["content"]))
        return [each for turn in self.session.turns for each in _calls_of(turn, results)]


def _calls_of(turn: Turn, results: Mapping[str, str]) -> list[ToolCall]:
    ids = {id(call): call_id for call_id, call in readable_calls(turn)}
    return [_record(turn, call, results.get(ids.get(id(call), ""))) for call in turn.answer.calls]


def _record(turn: Turn, call: ParsedCall, result: str | None) -> ToolCall:
    """Return the record of a call. Without a result it counts as not run."""
    status = "not_run" if call.status == "ok" and result is None else call.status
    return ToolCall(
        turn=turn.number, name=call.name, arguments=call.recorded_arguments, status=status, result=result or ""
    )


def _identity(message: Message) -> tuple[Any, ...]:
    """Return what identifies a message when a client sends it back, without thinking and other keys that clients rewrite."""
    calls = tuple(
        (call["id"], call["function"]["name"], _canonical(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    return message["role"], (message["content"] or "").strip(), calls, message.get("tool_call_id")


def _canonical(arguments: Any) -> str:
    """Return one text for arguments of the same meaning, as an object or as JSON; invalid JSON stays unchanged."""
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except ValueError:
            return str(arguments)
    return json.dumps(arguments, sort_keys=True)
