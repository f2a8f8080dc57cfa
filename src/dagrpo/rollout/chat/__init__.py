"""How a conversation becomes tokens, and a completion becomes an answer with tool calls: one small file per chat format.

A format never tokenises again what the engine generated: it renders the first prompt, and then only what comes between two
completions. Not here: when to ask, and what to do with a call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dagrpo.params.plugged import Choice
from dagrpo.plugins import Plugins
from dagrpo.rollout.calls import Status

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""OpenAI's chat message: role, content, and tool_calls, tool_call_id, reasoning_content."""
ToolSchema = Mapping[str, Any]
"""OpenAI's function schema: {"type": "function", "function": {name, description, parameters}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """One tool call as the policy wrote it, well formed or not. Whoever parses loses none."""

    name: str  # "" where none could be read
    arguments: Mapping[str, Any]  # {} where none could be read
    status: Status
    fault: str = ""  # what is wrong with it, a sentence for the policy; "" when status is ok
    raw: str  # the text that it was read from, markers included
    span: tuple[int, int]  # of the completion's tokens: the first, and one past the last

    @property
    def is_readable(self) -> bool:
        """Whether its name and arguments are known, right or wrong."""
        return self.status not in ("undecodable", "unclosed", "missing_name")

    @property
    def recorded_arguments(self) -> str:
        """JSON with its keys sorted, as in a rollout table; the text as written where it could not be read."""
        return json.dumps(dict(self.arguments), sort_keys=True, ensure_ascii=False) if self.is_readable else self.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """What a completion says."""

    content: str  # the text outside of thinking and calls
    thinking: str = ""
    calls: tuple[ParsedCall, ...] = ()
    dropped_calls: int = 0  # opening markers that led to none of `calls`: a bug of the format, held at 0 by a gate


class ChatFormat(Protocol):
    """The chat format of one model: its template, and how it writes calls."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        """The first prompt, ready for the policy to answer: its text and its tokens. UserError: the template refuses."""
        ...

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        """The tokens from the end of a completion to the next one's start, with the messages `new` in between.

        `prompt` is what the completion continues. The tokens begin with the end-of-turn token where the completion was cut
        off before it. None where the template would rewrite what was said before: then the conversation goes on in a new
        sample, rendered afresh.
        """
        ...

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        """What a completion says, which continues `prompt`: thinking may have been opened there. Never raises."""
        ...

    def text(self, completion: Sequence[int]) -> str:
        """A completion as it was written, calls included, without special tokens."""
        ...

    def message(self, answer: ParsedAnswer) -> Message:
        """The assistant's message in the form in which the template takes it again."""
        ...

    def spelled(self, message: Message) -> str:
        """The text that a policy writes for an assistant's message, without the end of the turn: for demonstrations."""
        ...

    def require_tool_results(self, tools: Sequence[ToolSchema]) -> None:
        """UserError where the template leaves out a tool's result: the policy would never see it."""
        ...


ConfigType = TypeVar("ConfigType", bound=Choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(Generic[ConfigType]):
    """A kind of chat format, before it knows a tokenizer."""

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
)


def chat_format(tokenizer: PreTrainedTokenizerBase, config: Choice) -> ChatFormat:
    """The format that section rollout.chat names, for a tokenizer."""
    return CHATS.get(config.name).bind(tokenizer, config)
