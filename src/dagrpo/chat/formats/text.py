"""Render chat messages to text by a model's own, unpatched template.

Messages are first brought into the form that this template accepts.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import Message, ToolSchema
from dagrpo.chat.rendering import chosen_template, template_text
from dagrpo.chat.templates import TemplateRefusal
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
