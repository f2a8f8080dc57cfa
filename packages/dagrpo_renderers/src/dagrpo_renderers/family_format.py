"""Chat format of one family, by a renderer of the library `renderers`.

Results are converted to our records, and no exception passes. A renderer is chosen by name and never by the model's path, for
which the library would silently choose one that parses no calls.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from renderers import RendererConfig, create_renderer
from renderers.base import ParsedResponse, ParsedToolCall, Renderer
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.text import QUESTION, RESULT
from dagrpo.chat.formats.tokens import Tokens, any_of
from dagrpo.chat.renderers import Message, ParsedAnswer, ParsedCall, ToolSchema
from dagrpo.chat.rendering import completion_text
from dagrpo.chat.tool_calls import Attempt, Schemas, Status, call_id, schemas_of
from dagrpo.chat.tool_calls.checks import checked
from dagrpo.chat.tool_calls.families import qwen3_coder
from dagrpo.chat.tool_calls.reading import Broken
from dagrpo.core.errors import UserError

OPENINGS = ("<tool_call>", "<|tool_call_begin|>", "<｜tool▁call▁begin｜>", "<|tool_call>", "<minimax:tool_call>")
"""The markers of all families that begin a call; a tokenizer has those of its own."""
STATUSES: Mapping[str, tuple[Status, str]] = {
    "ok": ("ok", ""),
    "invalid_json": ("undecodable", "The arguments are not valid JSON."),
    "malformed_structure": ("undecodable", "The call has not the form that calls have."),
    "unclosed_block": ("unclosed", "The call has no closing marker."),
    "missing_name": ("missing_name", "The call has no name that says which tool is meant."),
    "unknown_tool": ("ok", ""),  # reported by the schema check, as everywhere
}

# Families whose arguments are text between tags. The library drops white space there, and text of most types: they are read here.
LIKE_QWEN3_CODER = ("nemotron", "prime-qwen3", "qwen3.")
IN_PAIRS = ("glm", "hy3", "laguna", "minimax")
_INVOKE = re.compile(r"<invoke name=.*?</invoke>", re.DOTALL)
_OPENING = re.compile(
    r'<parameter name="(?P<name>[^"]{1,200})">|<arg_key(?::\w+)?>(?P<key>[^<]{1,200})</arg_key(?::\w+)?>\s*<arg_value(?::\w+)?>'
)


def family_format(tokenizer: PreTrainedTokenizerBase, family: str, options: Mapping[str, Any]) -> "FamilyFormat":
    """Return the family's format. Raises UserError if the family lacks an option, or the tokenizer is of another family."""
    try:
        renderer = create_renderer(tokenizer, _config(family, options))
    except Exception as error:  # the border to the library: asserts, HarmonyError, pydantic's errors and others
        raise UserError(
            f"the tokenizer of {tokenizer.name_or_path} does not go with the chat format of the family {family} "
            f"({type(error).__name__}: {str(error)[:300]}): correct rollout.chat.family or rollout.chat.options. gpt-oss "
            "needs the vocabulary file of openai-harmony besides, in the folder TIKTOKEN_ENCODINGS_BASE."
        ) from error
    read = (
        _like_qwen3_coder if family.startswith(LIKE_QWEN3_CODER) else _in_pairs if family.startswith(IN_PAIRS) else None
    )
    return FamilyFormat(tokenizer, renderer, named_ids=family.startswith("kimi"), read_tags=read)


def family_names() -> list[str]:
    """Return the library's families, without those that stand for a guess or for user code."""
    names = {config.model_fields["name"].default for config in get_args(get_args(RendererConfig)[0])}
    return sorted(names - {"auto", "default", "custom"})


def _config(family: str, options: Mapping[str, Any]) -> RendererConfig:
    configs = get_args(get_args(RendererConfig)[0])
    config = next(config for config in configs if config.model_fields["name"].default == family)
    chosen: RendererConfig = config(**options)
    return chosen


class FamilyFormat:
    """ChatFormat by one renderer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        renderer: Renderer,
        *,
        named_ids: bool = False,
        read_tags: Callable[[Attempt, str, Schemas], Attempt] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._named_ids = named_ids  # Kimi writes a call's id in place of its name
        self._read_tags = read_tags
        self._tokens = Tokens(tokenizer)
        vocabulary = tokenizer.get_added_vocab()
        self._openings = [vocabulary[opening] for opening in OPENINGS if opening in vocabulary]

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        """Return the conversation as the renderer writes it, and its tokens. Later messages hold no special token."""
        first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        try:
            token_ids = self._renderer.render_ids(
                [*messages[:first], *self._tokens.parted(messages[first:])],
                tools=list(tools) or None,
                add_generation_prompt=True,
            )
        except Exception as error:  # the border to the library, which raises whatever it likes over a message
            raise UserError(
                f"the chat format of {self._tokenizer.name_or_path} refuses the conversation ({error}): change the "
                "task's messages."
            ) from error
        return self._tokens.decoded(token_ids), tuple(token_ids)

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        """Return the tokens of the renderer's bridge; None if it has no bridge, or one that leaves out what the policy wrote."""
        before = [*prompt, *completion]
        try:
            rendered = self._renderer.bridge_to_next_turn(
                list(prompt), list(completion), self._tokens.parted(new), tools=list(tools) or None
            )
        except Exception:  # noqa: BLE001  # the border to the library: a prompt rendered afresh then says what is wrong
            return None
        if rendered is None or rendered.token_ids[: len(before)] != before or len(rendered.token_ids) == len(before):
            return None
        return tuple(rendered.token_ids[len(before) :])

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        """Parse a completion with the renderer and check each call against its tool's schema."""
        try:
            parsed = self._renderer.parse_response(list(completion), tools=list(tools) or None, prompt_ids=list(prompt))
            calls = tuple(self._call(*each, len(completion), tools) for each in _with_texts(parsed.tool_calls))
        except Exception as error:  # noqa: BLE001  # untrusted output: the library lets RecursionError and others through
            return self._unreadable(completion, error)
        return ParsedAnswer(
            content=parsed.content,
            thinking=parsed.reasoning_content or "",
            calls=calls,
            dropped_calls=self._dropped(completion, parsed, calls),
        )

    def text(self, completion: Sequence[int]) -> str:
        """Return the completion, calls and thinking included, without special tokens."""
        return completion_text(self._tokenizer, completion)

    def message(self, answer: ParsedAnswer) -> Message:
        """Return a message with tool_calls if every call is readable; else with all calls as written, in the content."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if not all(call.is_readable for call in answer.calls):
            message["content"] = "\n".join(filter(None, [answer.content, *(call.raw for call in answer.calls)]))
        elif answer.calls:
            message["tool_calls"] = [
                {
                    "id": self._id(call.name, at),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for at, call in enumerate(answer.calls)
            ]
        return message

    def spelled(self, message: Message) -> str:
        """Return the text that the renderer writes after a prompt, up to the end of the turn."""
        calls = [{**call, "id": self._id(call["function"]["name"], at)} for at, call in enumerate(_calls(message))]
        answer = {**message, "tool_calls": calls} if calls else message
        before = self._tokens.decoded(self._renderer.render_ids([QUESTION], add_generation_prompt=True))
        whole = self._tokens.decoded(self._renderer.render_ids([QUESTION, answer], add_generation_prompt=False))
        if not whole.startswith(before):
            raise UserError(
                f"the chat format of {self._tokenizer.name_or_path} begins an answer in another way than it asks for one: "
                "no demonstrations can be made for it; leave the sft stage out."
            )
        stops = any_of(self._tokenizer.convert_ids_to_tokens(self._renderer.get_stop_token_ids()))
        return stops.split(whole[len(before) :], maxsplit=1)[0]

    def require_tool_results(self, tools: Sequence[ToolSchema]) -> None:
        """Raise UserError if the renderer does not show the result of a call."""
        if not tools:
            return
        name = tools[0]["function"]["name"]
        call = {"id": call_id(0), "type": "function", "function": {"name": name, "arguments": {}}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "name": name, "tool_call_id": call_id(0), "content": RESULT}
        if RESULT not in self.prompt([QUESTION, answer, result], tools)[0]:
            raise UserError(
                f"the chat format of {self._tokenizer.name_or_path} does not show a tool's result, so the policy would "
                "never see it: choose another rollout.chat.family, or take the tools out of rollout.tools."
            )

    def _id(self, name: str, position: int) -> str:
        return f"functions.{name}:{position}" if self._named_ids else call_id(position)

    def _call(self, call: ParsedToolCall, text: str, length: int, tools: Sequence[ToolSchema]) -> ParsedCall:
        status, fault = STATUSES[call.status.value]
        start, end = call.token_span or (0, length)
        attempt = Attempt(start=start, end=end, name=call.name or "", arguments={}, status=status, fault=fault)
        schemas = schemas_of(tools)
        if self._read_tags is not None and call.status.value in ("ok", "unknown_tool", "invalid_json"):
            attempt = checked(self._read_tags(attempt, text, schemas), schemas)
        elif status == "ok":
            attempt = checked(_with_arguments(attempt, call.arguments), schemas)
        return ParsedCall(
            name=attempt.name,
            arguments=attempt.arguments or {},
            status=attempt.status,
            fault=attempt.fault,
            raw=call.raw,
            span=(start, end),
        )

    def _unreadable(self, completion: Sequence[int], error: Exception) -> ParsedAnswer:
        fault = f"The call cannot be read ({type(error).__name__})."
        text = completion_text(self._tokenizer, completion)
        call = ParsedCall(name="", arguments={}, status="undecodable", fault=fault, raw=text, span=(0, len(completion)))
        return ParsedAnswer(content="", calls=(call,))

    def _dropped(self, completion: Sequence[int], parsed: ParsedResponse, calls: Sequence[ParsedCall]) -> int:
        """Return the number of opening markers outside of all calls and of thinking."""
        within = {at for call in calls for at in range(*call.span)}
        outside = sum(token in self._openings for at, token in enumerate(completion) if at not in within)
        return max(0, outside - sum((parsed.reasoning_content or "").count(opening) for opening in OPENINGS))


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or ()


def _with_texts(calls: Sequence[ParsedToolCall]) -> Iterator[tuple[ParsedToolCall, str]]:
    """Yield each call with its own text: those of one block of MiniMax all have the block's."""
    blocks: dict[object, Iterator[str]] = {}
    for call in calls:
        if call.token_span not in blocks:
            blocks[call.token_span] = iter(_INVOKE.findall(call.raw))
        yield call, next(blocks[call.token_span], call.raw)


def _like_qwen3_coder(attempt: Attempt, text: str, schemas: Schemas) -> Attempt:
    """Return the attempt as `qwen3_coder` reads it."""
    own = next(iter(qwen3_coder.read(f"{qwen3_coder.OPENING}{text}{qwen3_coder.CLOSING}", schemas)))
    return replace(own, start=attempt.start, end=attempt.end)


def _in_pairs(attempt: Attempt, text: str, schemas: Schemas) -> Attempt:
    """Return the attempt with the arguments of its text, which stand in pairs of name and value."""
    try:
        written = _written(text)
    except Broken as broken:
        return replace(attempt, status=broken.status, fault=str(broken))
    schema = schemas.get(attempt.name, {})
    arguments = {key: qwen3_coder.typed(value, key, schema) for key, value in written.items()}
    return replace(attempt, status="ok", fault="", arguments=arguments)


def _written(text: str) -> dict[str, str]:
    """Return the arguments as written, white space included. Raises Broken if one is not closed, or there twice."""
    values: dict[str, str] = {}
    end = 0
    while opening := _OPENING.search(text, end):
        key = opening["name"] or opening["key"].strip()
        closing = "</parameter>" if opening["name"] else "</arg_value"
        end = text.find(closing, opening.end())
        if end < 0 or _OPENING.search(text, opening.end(), end):
            raise Broken("undecodable", f"The argument {key} is not closed with {closing.rstrip('>')}>.")
        if key in values:
            raise Broken("undecodable", f"The argument {key} is there twice.")
        values[key] = text[opening.end() : end]
    return values


def _with_arguments(attempt: Attempt, arguments: object) -> Attempt:
    """Return the attempt with its arguments, if a tool, a file and a template can take them; else with a status that says why not."""
    if not isinstance(arguments, dict):
        return replace(attempt, status="wrong_arguments", fault="The arguments are not a JSON object.")
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # NaN, half of a surrogate pair, 3,000 brackets
        return replace(attempt, status="undecodable", fault="The arguments are not valid JSON.")
    return replace(attempt, arguments=arguments)
