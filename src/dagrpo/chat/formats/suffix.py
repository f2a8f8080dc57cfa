"""Suffixes: a chat template's text between two answers.

A suffix is the end of one turn, new messages, and the beginning of the next turn. It is cut from a dummy conversation: a question,
an answer that ends in a sentinel, the new messages. The text after the sentinel and its end of turn is the suffix. Two sentinels
after two histories have to agree, else the suffix depends on earlier messages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagrpo.chat.formats.text import QUESTION, THOUGHT, TemplateText
from dagrpo.chat.renderers import Message, ToolSchema
from dagrpo.chat.templates import TemplateRefusal
from dagrpo.chat.tool_calls import call_id

SENTINELS = ("A1b2sentinelC3", "Zz9otherY8")


@dataclass(frozen=True, slots=True)
class _Dummy:
    """Dummy answer before the new messages, with `calls` calls, with thinking or without."""

    calls: int
    thinking: bool
    tools: bool = True  # whether the tools are offered: without them there is less to render


class Suffixes:
    """Suffixes of one template. A result for one shape of new messages is cached."""

    def __init__(self, template: TemplateText) -> None:
        self._template = template
        self._dummies: dict[Any, _Dummy | None] = {}

    def after(self, new: Sequence[Message], tools: Sequence[ToolSchema], *, thinking: bool) -> str | None:
        """Return the text after the end of turn; None if the template would rewrite earlier messages."""
        dummy = self._dummy(new, tools, thinking)
        if dummy is None:
            return None
        try:
            return self._cut(SENTINELS[0], dummy, new, tools)
        except TemplateRefusal:  # of these messages, though not of others of their shape
            return None

    def shows(self, new: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
        """Return True if the template shows the content of the last new message after some answer."""
        return any(self._shows(dummy, new, tools) for dummy in _dummies(new, thinking=False))

    def _shows(self, dummy: _Dummy, new: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
        try:
            text = self._template.render([QUESTION, self._answer(SENTINELS[0], dummy, new, tools), *new], tools)
        except TemplateRefusal:
            return False
        return new[-1]["content"] in text.partition(SENTINELS[0])[2]

    def _dummy(self, new: Sequence[Message], tools: Sequence[ToolSchema], thinking: bool) -> _Dummy | None:
        shape = (
            tuple((message["role"], "name" in message, "tool_call_id" in message) for message in new),
            tuple(tool["function"]["name"] for tool in tools),
            thinking,
        )
        if shape not in self._dummies:
            self._dummies[shape] = self._fitting(new, tools, thinking)
        return self._dummies[shape]

    def _fitting(self, new: Sequence[Message], tools: Sequence[ToolSchema], thinking: bool) -> _Dummy | None:
        for dummy in _dummies(new, thinking):
            if (tail := self._probed(dummy, new, tools)) is not None:
                leaner = replace(dummy, tools=False)
                return leaner if self._probed(leaner, new, tools) == tail else dummy
        return None

    def _probed(self, dummy: _Dummy, new: Sequence[Message], tools: Sequence[ToolSchema]) -> str | None:
        """Return the suffix, if it shows every new message, leaves earlier messages alone and does not depend on them."""
        marks = [f"M{position}mark" for position in range(len(new))]
        probes: list[Message] = [{**message, "content": mark} for message, mark in zip(new, marks, strict=True)]
        earlier = [QUESTION, self._answer("a", dummy, probes, tools), *probes, {"role": "assistant", "content": "b"}]
        try:
            tails = {
                self._cut(SENTINELS[0], dummy, probes, tools),
                self._cut(SENTINELS[1], dummy, probes, tools, earlier),
            }
        except TemplateRefusal:
            return None
        tail = tails.pop()
        return tail if not tails and tail is not None and _in_order(marks, tail) else None

    def _cut(
        self,
        sentinel: str,
        dummy: _Dummy,
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        earlier: Sequence[Message] = (),
    ) -> str | None:
        messages = [*earlier, QUESTION, self._answer(sentinel, dummy, new, tools), *new]
        text = self._template.render(messages, tools if dummy.tools else ())
        head, _, rest = text.partition(sentinel)
        if dummy.thinking and THOUGHT not in head:
            return None
        _, end, tail = rest.partition(self._template.end_of_turn)
        return tail if end else None

    def _answer(
        self, sentinel: str, dummy: _Dummy, new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> dict[str, Any]:
        """Return the dummy's answer. Its sentinel is in the last call, if any: some templates drop the content beside calls."""
        answer: dict[str, Any] = {"role": "assistant", "content": "" if dummy.calls else sentinel}
        if dummy.calls:
            name = tools[0]["function"]["name"] if tools else "f"
            answers = [message for message in new if message["role"] == "tool"]
            answer["tool_calls"] = [
                self._template.call(
                    str(message.get("name") or name),
                    {"x": sentinel if position == dummy.calls - 1 else ""},
                    str(message.get("tool_call_id") or call_id(position)),
                )
                for position, message in enumerate(answers[: dummy.calls])
            ]
        if dummy.thinking and self._template.takes_reasoning:
            answer["reasoning_content"] = THOUGHT
        elif dummy.thinking:
            answer["content"] = f"<think>\n{THOUGHT}\n</think>\n\n{answer['content']}"
        return answer


def _dummies(new: Sequence[Message], thinking: bool) -> Iterator[_Dummy]:
    """Yield the answers to try: with a call per result, with one call, and with none."""
    results = sum(message["role"] == "tool" for message in new)
    for calls in dict.fromkeys((results, min(results, 1), 0)):
        yield _Dummy(calls=calls, thinking=thinking)


def _in_order(marks: Sequence[str], text: str) -> bool:
    """Return True if each mark is in the text once, in order."""
    return all(text.count(mark) == 1 for mark in marks) and sorted(marks, key=text.index) == list(marks)
