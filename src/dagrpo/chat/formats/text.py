"""Render chat messages to text by a model's own, unpatched template.

Messages are first brought into the form that this template accepts.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import Message, ToolSchema
from dagrpo.chat.rendering import TemplateRefusal, chosen_template, template_text
from dagrpo.chat.tool_calls import call_id
from dagrpo.core.errors import UserError

QUESTION: Message = {"role": "user", "content": "u"}
ARGUMENT, THOUGHT, RESULT = "Q7argumentX", "K3thoughtW", "R5resultY"
"""What probes say, and no template writes of its own accord."""


class TemplateText:
    """Chat template of a tokenizer. Raises UserError if it has none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path} has no chat template: use a model that has one."
            )
        self._tokenizer = tokenizer
        self._arguments_as_text = False
        self._arguments_as_text = not self._takes_arguments_as_an_object()
        self.knows_thinking = "think>" in chosen_template(tokenizer)
        self.takes_reasoning = self.knows_thinking and self._takes_reasoning()
        self.end_of_turn = self._end_of_turn()

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the conversation as the template writes it. Raises TemplateRefusal if it refuses."""
        accepted = [self.accepted(message) for message in messages]
        return template_text(self._tokenizer, accepted, tools, add_generation_prompt=add_generation_prompt)

    def accepted(self, message: Message) -> dict[str, Any]:
        """Return a message with its content as text and its calls' arguments in the form that the template accepts."""
        accepted = {**message, "content": _content(message.get("content"))}
        if message.get("tool_calls"):
            accepted["tool_calls"] = [self._accepted_call(call) for call in message["tool_calls"]]
        return accepted

    def call(self, name: str, arguments: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Return one entry of tool_calls."""
        call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        return self._accepted_call(call)

    def _accepted_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if self._arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        elif not self._arguments_as_text and isinstance(arguments, str):
            arguments = _object(arguments)
        return {**call, "function": {**function, "arguments": arguments}}

    def _takes_arguments_as_an_object(self) -> bool:
        call = self.call("f", {"x": ARGUMENT}, call_id(0))
        try:
            text = self.render([QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}], ())
        except TemplateRefusal:
            return False
        return f"'{ARGUMENT}'" not in text  # as Python writes a dict, not as JSON

    def _takes_reasoning(self) -> bool:
        answer = {"role": "assistant", "content": "a", "reasoning_content": THOUGHT}
        try:
            return THOUGHT in self.render([QUESTION, answer], (), add_generation_prompt=False)
        except TemplateRefusal:
            return False

    def _end_of_turn(self) -> str:
        """Return the special token that the template puts after an answer; the tokenizer's eos where it puts none."""
        eos = str(self._tokenizer.eos_token)
        try:
            text = self.render([QUESTION, {"role": "assistant", "content": ARGUMENT}], (), add_generation_prompt=False)
        except TemplateRefusal:
            return eos
        after = text.partition(ARGUMENT)[2].lstrip()
        special = re.match("|".join(sorted(map(re.escape, self._tokenizer.all_special_tokens), key=len)[::-1]), after)
        return special.group() if special else eos


def _content(content: Any) -> Any:
    """Return the content as text: OpenAI's clients send null beside calls, and text in parts."""
    if content is None:
        return ""
    if isinstance(content, list) and all(map(_is_text, content)):
        return "".join(part["text"] for part in content)
    return content


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):  # a policy wrote it: the template shows it as it stands
        return arguments


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
    return all(text.count(mark) == 1 for mark in marks) and sorted(marks, key=text.index) == list(marks)
