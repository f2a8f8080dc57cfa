"""Chat format by a model's own template and a family's call syntax.

Thinking stands at the beginning of a completion: after <think>, or at once where the prompt ends in it. It extends to the first
</think>, or to the end if that is missing. A <think> anywhere else is ordinary text, so one within a call's arguments
breaks no call. Text within thinking that looks like a call is ignored, as in SGLang's server.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.text import RESULT, Suffixes, TemplateText
from dagrpo.chat.formats.tokens import Tokens, TokenSpans, any_of
from dagrpo.chat.renderers import Message, ParsedAnswer, ParsedCall, ToolSchema
from dagrpo.chat.rendering import TemplateRefusal, completion_text
from dagrpo.chat.tool_calls import Attempt, CallSyntax, attempts_in, call_id
from dagrpo.core.errors import UserError

OPENING, CLOSING = "<think>", "</think>"
PROMPT_TAIL = 8  # tokens, enough to see whether a prompt ends in <think>
_THOUGHT = re.compile(r"<think>(?!\s*</think>)\s*\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Thinking and answer of a completion."""

    thinking: str
    start: int  # of the answer, a position in the text
    is_open: bool  # cut off within thinking


class TemplateFormat:
    """ChatFormat by the tokenizer's own template. Raises UserError if the tokenizer has none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, calls: CallSyntax) -> None:
        self._tokenizer = tokenizer
        self._calls = calls
        self._template = TemplateText(tokenizer)
        self._suffixes = Suffixes(self._template)
        self._tokens = Tokens(tokenizer)
        self._end = self._tokens.id_of(self._template.end_of_turn)
        self._stops = {self._end, tokenizer.eos_token_id}
        own = {*calls.openings, *calls.closings, OPENING, CLOSING}
        foreign = [token for token in self._tokens.special if token not in own]
        self._foreign = any_of(foreign)
        self._foreign_ids = {self._tokens.id_of(token) for token in foreign} | self._stops

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        """Return the conversation as the template writes it, and its tokens."""
        try:
            text = self._template.render(self._tokens.guarded(messages), self._tokens.guarded(tools))
        except TemplateRefusal as error:
            raise UserError(
                f"the chat template of {self._tokenizer.name_or_path} refuses the conversation ({error}): "
                "use a model whose template takes these roles, or change the task's messages."
            ) from error
        return self._tokens.restored(text), self._tokens.encoded(text)

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        """Return the suffix's tokens; None for a special token within the completion, thinking cut off, or a template that rewrites.

        A stop token or a chat marker in the middle of a turn would make a conversation that no template writes. The next
        sample begins without it.
        """
        if not new or any(message["role"] == "assistant" for message in new):
            return None
        ended = bool(completion) and completion[-1] == self._end
        if not self._foreign_ids.isdisjoint(completion[:-1] if ended else completion):
            return None
        thought = False
        if self._template.knows_thinking:
            text, opened = self._tokens.decoded(completion), self._opens_thinking(prompt)
            if _split_thinking(text, opened=opened).is_open:
                return None
            thought = opened or OPENING in text or CLOSING in text  # templates look for a mark everywhere
        suffix = self._suffixes.after(self._tokens.guarded(new), self._tokens.guarded(tools), thinking=thought)
        if suffix is None or (not thought and self._rewrites_thinking_before(prompt, new, tools)):
            return None
        # The end of turn is encoded too: what follows a special token may lose its spaces in the tokenizer.
        token_ids = self._tokens.encoded(self._template.end_of_turn + suffix)
        assert token_ids[0] == self._end, "the end of turn is one token"
        return token_ids[1:] if ended else token_ids

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        """Parse thinking, calls, and the content beside them."""
        if not tools and not self._template.knows_thinking:
            return ParsedAnswer(content=self.text(completion), is_whole=True)
        written = list(completion)
        while written and written[-1] in self._stops:
            written.pop()
        text, start, thought = self._tokens.decoded(written), 0, ""
        if self._template.knows_thinking:
            parts = _split_thinking(text, opened=self._opens_thinking(prompt))
            start, thought = parts.start, parts.thinking
        attempts = attempts_in(text[start:], self._calls, tools) if tools else []
        if not attempts and not start:
            return ParsedAnswer(content=self.text(completion), is_whole=True)
        answer = text[start:]
        words = "".join(_outside(answer, attempts))
        return ParsedAnswer(
            content=self._plain(words),
            thinking=self._plain(thought),
            calls=self._parsed(answer, start, attempts, written),
            dropped_calls=sum(words.count(opening) for opening in self._calls.openings),
        )

    def text(self, completion: Sequence[int]) -> str:
        """Return the completion, calls and thinking included, without special tokens."""
        return completion_text(self._tokenizer, completion)

    def message(self, answer: ParsedAnswer) -> Message:
        """Return a message with tool_calls if every call is readable; else with all calls as written, in the content."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.thinking and self._template.takes_reasoning:
            message["reasoning_content"] = answer.thinking
        elif answer.thinking:
            message["content"] = f"<think>\n{answer.thinking}\n</think>\n\n{answer.content}"
        if not all(call.is_readable for call in answer.calls):
            message["content"] = "\n".join(filter(None, [message["content"], *(call.raw for call in answer.calls)]))
        elif answer.calls:
            message["tool_calls"] = [
                self._template.call(call.name, call.arguments, call_id(position))
                for position, call in enumerate(answer.calls)
            ]
        return message

    def spelled(self, message: Message) -> str:
        """Write thinking, content and calls, each on separate lines."""
        calls = self._calls.spell([_name_and_arguments(call) for call in message.get("tool_calls") or ()])
        words = "\n".join(filter(None, [message.get("content"), calls]))
        thought = message.get("reasoning_content")
        return f"<think>\n{thought}\n</think>\n\n{words}" if thought else words

    def require_tool_results(self, tools: Sequence[ToolSchema]) -> None:
        """Raise UserError if the template does not show the result of a call."""
        if not tools:
            return
        result = {"role": "tool", "name": tools[0]["function"]["name"], "tool_call_id": call_id(0), "content": RESULT}
        if not self._suffixes.shows([result], tools):
            raise UserError(
                f"the chat template of {self._tokenizer.name_or_path} does not show a tool's result after an answer, so the "
                "policy would never see it: use a model whose template has the role `tool`, set rollout.chat.name to "
                "renderers if its family is there, or take the tools out of rollout.tools."
            )

    def _rewrites_thinking_before(
        self, prompt: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> bool:
        """Return True if earlier turns in the prompt hold thinking which the template drops from here on."""
        if not self._template.knows_thinking or self._suffixes.after(new, tools, thinking=True) is not None:
            return False
        return _THOUGHT.search(self._tokens.decoded(prompt)) is not None

    def _opens_thinking(self, prompt: Sequence[int]) -> bool:
        return self._tokens.decoded(prompt[-PROMPT_TAIL:]).rstrip().endswith(OPENING)

    def _parsed(
        self, text: str, offset: int, attempts: Sequence[Attempt], written: Sequence[int]
    ) -> tuple[ParsedCall, ...]:
        if not attempts:
            return ()
        spans = TokenSpans(self._tokenizer, written)
        return tuple(
            ParsedCall(
                name=attempt.name,
                arguments=attempt.arguments or {},
                status=attempt.status,
                fault=attempt.fault,
                raw=text[attempt.start : attempt.end],
                span=spans.of(offset + attempt.start, offset + attempt.end),
            )
            for attempt in attempts
        )

    def _plain(self, text: str) -> str:
        return self._foreign.sub("", text).strip()


def _outside(text: str, attempts: Sequence[Attempt]) -> list[str]:
    starts = [0, *(attempt.end for attempt in attempts)]
    ends = [*(attempt.start for attempt in attempts), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _name_and_arguments(call: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    arguments = call["function"]["arguments"]
    return call["function"]["name"], json.loads(arguments) if isinstance(arguments, str) else arguments


def _split_thinking(text: str, *, opened: bool) -> _Split:
    """Return the thinking at a text's beginning and the rest; `opened`: the prompt ends in <think>."""
    start = 0
    if not opened:
        start = len(text) - len(text.lstrip())
        if not text.startswith(OPENING, start):
            return _Split(thinking="", start=0, is_open=False)
        start += len(OPENING)
    end = text.find(CLOSING, start)
    if end < 0:
        return _Split(thinking=text[start:].strip(), start=len(text), is_open=True)
    return _Split(thinking=text[start:end].strip(), start=end + len(CLOSING), is_open=False)
