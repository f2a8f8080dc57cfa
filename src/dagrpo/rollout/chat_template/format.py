"""The chat format that a model's own template and a family's way to write calls make up."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.errors import UserError
from dagrpo.rendering import completion_text
from dagrpo.rollout.calls import Attempt, CallSyntax, attempts_in, call_id
from dagrpo.rollout.calls.spans import TokenSpans
from dagrpo.rollout.chat import Message, ParsedAnswer, ParsedCall, ToolSchema
from dagrpo.rollout.chat_template import thinking
from dagrpo.rollout.chat_template.suffix import Suffixes
from dagrpo.rollout.chat_template.text import REFUSALS, TemplateText

PROMPT_TAIL = 8  # tokens, enough to see whether a prompt ends in <think>


class TemplateFormat:
    """A ChatFormat by the tokenizer's own template. UserError: the tokenizer has none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, calls: CallSyntax) -> None:
        self._tokenizer = tokenizer
        self._calls = calls
        self._template = TemplateText(tokenizer)
        self._suffixes = Suffixes(self._template)
        self._end = self._id_of(self._template.end_of_turn)
        self._stops = {self._end, tokenizer.eos_token_id}
        kept = {*calls.openings, *calls.scaffold, thinking.OPENING, thinking.CLOSING}
        self._control = _any_of(tokenizer.all_special_tokens)
        self._special = _any_of([token for token in tokenizer.all_special_tokens if token not in kept])

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        """The conversation as the template writes it, and its tokens."""
        try:
            text = self._template.render(messages, tools)
        except REFUSALS as error:
            raise UserError(
                f"the chat template of {self._tokenizer.name_or_path} refuses the conversation ({error}): "
                "use a model whose template takes these roles, or change the task's messages."
            ) from error
        return text, self._encoded(text)

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        """The suffix's tokens. None: a stop token within the completion, thinking cut off, or a template that rewrites."""
        if not new or any(message["role"] == "assistant" for message in new):
            return None
        ended = bool(completion) and completion[-1] == self._end
        if not self._stops.isdisjoint(completion[:-1] if ended else completion):
            return None
        thought = False
        if self._template.knows_thinking:
            text, opened = self._decoded(completion), self._opens_thinking(prompt)
            if thinking.split(text, opened=opened).is_open:
                return None
            thought = opened or thinking.is_marked(text)
        suffix = self._suffixes.after(new, tools, thinking=thought)
        if suffix is None or (not thought and self._rewrites_thinking_before(prompt, new, tools)):
            return None
        # The end of turn is encoded too: what follows a special token may lose its spaces in the tokenizer.
        token_ids = self._encoded(self._template.end_of_turn + suffix)
        assert token_ids[0] == self._end, "the end of turn is one token"
        return token_ids[1:] if ended else token_ids

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        """Thinking, calls, and what is said beside them."""
        written = list(completion)
        while written and written[-1] in self._stops:
            written.pop()
        text, start, thought = self._decoded(written), 0, ""
        if self._template.knows_thinking:
            split = thinking.split(text, opened=self._opens_thinking(prompt))
            start, thought = split.start, split.thinking
        attempts = attempts_in(text[start:], self._calls, tools) if tools else []
        if not attempts and not start:
            return ParsedAnswer(content=completion_text(self._tokenizer, completion))
        answer = text[start:]
        said = "".join(_outside(answer, attempts))
        return ParsedAnswer(
            content=self._plain(said),
            thinking=self._plain(thought),
            calls=self._parsed(answer, start, attempts, written),
            dropped_calls=sum(said.count(opening) for opening in self._calls.openings),
        )

    def text(self, completion: Sequence[int]) -> str:
        """The completion, calls and thinking included, without special tokens."""
        return completion_text(self._tokenizer, completion)

    def harmless(self, text: str) -> str:
        """With a space in every special token that it spells, so that it is tokenized as ordinary text."""
        return self._control.sub(lambda found: f"{found.group()[0]} {found.group()[1:]}", text)

    def message(self, answer: ParsedAnswer) -> Message:
        """With tool_calls where every call could be read; else with all calls as they were written, in the content."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.thinking and self._template.takes_reasoning:
            message["reasoning_content"] = answer.thinking
        elif answer.thinking:
            message["content"] = f"<think>\n{answer.thinking}\n</think>\n\n{answer.content}"
        if any(call.status in ("undecodable", "unclosed", "missing_name") for call in answer.calls):
            message["content"] = "\n".join(filter(None, [message["content"], *(call.raw for call in answer.calls)]))
        elif answer.calls:
            message["tool_calls"] = [
                self._template.call(call.name, call.arguments, call_id(position))
                for position, call in enumerate(answer.calls)
            ]
        return message

    def spelled(self, message: Message) -> str:
        """Thinking, content and calls, each on lines of its own."""
        calls = self._calls.spell([_name_and_arguments(call) for call in message.get("tool_calls") or ()])
        said = "\n".join(filter(None, [message.get("content"), calls]))
        thought = message.get("reasoning_content")
        return f"<think>\n{thought}\n</think>\n\n{said}" if thought else said

    def require_tool_results(self, tools: Sequence[ToolSchema]) -> None:
        """By the result of a call that the template shows, or not."""
        if not tools:
            return
        result = {"role": "tool", "name": tools[0]["function"]["name"], "tool_call_id": call_id(0), "content": "42"}
        if self._suffixes.after([result], tools, thinking=False) is None:
            raise UserError(
                f"the chat template of {self._tokenizer.name_or_path} does not show a tool's result after an answer, so the "
                "policy would never see it: use a model whose template has the role `tool`, set rollout.chat.name to "
                "renderers if its family is there, or take the tools out of rollout.tools."
            )

    def _rewrites_thinking_before(
        self, prompt: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> bool:
        """Whether earlier turns in the prompt thought, and the template drops that from here on."""
        if not self._template.knows_thinking or self._suffixes.after(new, tools, thinking=True) is not None:
            return False
        return thinking.has_thought(self._decoded(prompt))

    def _opens_thinking(self, prompt: Sequence[int]) -> bool:
        return thinking.ends_open(self._decoded(prompt[-PROMPT_TAIL:]))

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
        """Without special tokens and the markers around calls, and without the white space at its ends."""
        for marker in self._calls.scaffold:
            text = text.replace(marker, "")
        return self._special.sub("", text).strip()

    def _decoded(self, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _id_of(self, token: str) -> int:
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        assert isinstance(token_id, int)
        return token_id


def _outside(text: str, attempts: Sequence[Attempt]) -> list[str]:
    """What stands between the calls."""
    starts = [0, *(attempt.end for attempt in attempts)]
    ends = [*(attempt.start for attempt in attempts), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _name_and_arguments(call: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    arguments = call["function"]["arguments"]
    return call["function"]["name"], json.loads(arguments) if isinstance(arguments, str) else arguments


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
