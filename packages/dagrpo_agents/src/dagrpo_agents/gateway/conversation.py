"""Match a program's requests, whole conversations, with the turns of a session."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagrpo.chat.renderers import Message, ParsedCall
from dagrpo.core.errors import UserError
from dagrpo.core.types import StopReason, ToolCall
from dagrpo.core.untrusted_json import read_json
from dagrpo.engine.errors import ServerError
from dagrpo.rollout.session import Session, SessionOver, Turn
from dagrpo_agents.gateway.replies import Reply, readable_calls, reply_of
from dagrpo_agents.gateway.requests import ChatRequest, Refused

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
