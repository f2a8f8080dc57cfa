"""Chat formats: messages to tokens, and completions to answers with tool calls.

Each format is one small file. It never tokenizes again what the engine generated: it renders the first prompt, and then only
the tokens between two completions. Agents decide when to ask the policy and how to answer a call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dagrpo.chat.tool_calls import Status
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.plugins import Plugins

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""OpenAI's chat message: role, content, and tool_calls, tool_call_id, reasoning_content."""
ToolSchema = Mapping[str, Any]
"""OpenAI's function schema: {"type": "function", "function": {name, description, parameters}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """Tool call as the policy wrote it, well formed or not. Parsers drop none."""

    name: str  # "" where none could be read
    arguments: Mapping[str, Any]  # {} where none could be read
    status: Status
    fault: str = ""  # what is wrong with it, a sentence for the policy; "" when status is ok
    raw: str  # the text that it was read from, markers included
    span: tuple[int, int]  # of the completion's tokens: the first, and one past the last

    @property
    def is_readable(self) -> bool:
        """Return True if its name and arguments are known, right or wrong."""
        return self.status not in ("undecodable", "unclosed", "missing_name")

    @property
    def recorded_arguments(self) -> str:
        """Return the arguments as a rollout table has them: JSON with sorted keys, or the text as written if it is unreadable."""
        return json.dumps(dict(self.arguments), sort_keys=True, ensure_ascii=False) if self.is_readable else self.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """Parsed content of a completion."""

    content: str  # the text outside of thinking and calls
    thinking: str = ""
    calls: tuple[ParsedCall, ...] = ()
    dropped_calls: int = 0  # opening markers that led to none of `calls`: a bug of the format, held at 0 by a gate
    is_whole: bool = False  # whether the content is all of the completion's text


class ChatFormat(Protocol):
    """Chat format of one model: its template, and its syntax of calls."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        """Return the text and tokens of the first prompt, ready for the policy to answer. Raises UserError if the template refuses."""

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        """Return the tokens from the end of a completion to the next one's start, with the messages `new` in between.

        `prompt` is the tokens that the completion continues. The result begins with the end-of-turn token where the completion was cut
        off before it. Returns None where the template would rewrite earlier messages: the conversation then continues in a new
        sample, rendered from the start.
        """

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        """Parse a completion that continues `prompt`, in which thinking may have been opened. Never raises."""

    def text(self, completion: Sequence[int]) -> str:
        """Return a completion as written, calls included, without special tokens."""

    def message(self, answer: ParsedAnswer) -> Message:
        """Return the assistant's message in the form in which the template accepts it."""

    def spelled(self, message: Message) -> str:
        """Return the text that a policy writes for an assistant's message, without the end of the turn: for demonstrations."""

    def require_tool_results(self, tools: Sequence[ToolSchema]) -> None:
        """Raise UserError if the template leaves out a tool's result, which the policy would never see."""


ConfigType = TypeVar("ConfigType", bound=Choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(Generic[ConfigType]):
    """Kind of chat format, before it is bound to a tokenizer."""

    config: type[ConfigType]  # its keys in rollout.chat
    bind: Callable[[PreTrainedTokenizerBase, ConfigType], ChatFormat]  # UserError: not with this tokenizer
    takes_pictures: bool = True  # whether it writes the placeholders of problems that show pictures


CHATS: Plugins[Chat[Any]] = Plugins(
    what="chat format",
    package=__name__,
    attribute="CHAT",
    group="dagrpo.chats",
    key="rollout.chat.name",
    kind=Chat,
    packaged={"renderers": "dagrpo[renderers]"},
)


def chat_format(tokenizer: PreTrainedTokenizerBase, config: Choice) -> ChatFormat:
    """Return the format that section rollout.chat names, bound to the tokenizer."""
    return CHATS.get(config.name).bind(tokenizer, config)
