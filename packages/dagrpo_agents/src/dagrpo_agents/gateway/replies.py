"""Turns as OpenAI chat completions, at once or as events.

Beside OpenAI's own keys they have the tokens, as vLLM gives them: prompt_token_ids, the choice's token_ids, and logprobs of
"token_id:<id>".
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dagrpo.chat.renderers import ParsedCall
from dagrpo.rollout.session import Session, Turn, without_thoughts_of
from dagrpo_agents.gateway.requests import ChatRequest


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
    """Yield the content and its tokens, the finish reason, and the usage."""
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
