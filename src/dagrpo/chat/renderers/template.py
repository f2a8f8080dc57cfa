"""template: the model's own chat template. The policy's tokens are never re-tokenized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dagrpo.chat.renderers import Chat, ChatFormat
from dagrpo.chat.tool_calls.families import CALLS
from dagrpo.core.plugin_sections import Choice, NameOf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Config(Choice):
    """The model's own chat template, and how the model writes calls."""

    name: Literal["template"] = Field("template", description="The model's own chat template.")
    calls: Annotated[str, NameOf(CALLS)] = Field(
        "hermes", description="How the model writes calls of tools: a file of chat/tool_calls/families."
    )


def bind(tokenizer: PreTrainedTokenizerBase, config: Config) -> ChatFormat:
    """Return the template's format. Raises UserError if the tokenizer has no chat template."""
    from dagrpo.chat.formats.template_format import TemplateFormat

    return TemplateFormat(tokenizer, CALLS.get(config.calls))


CHAT = Chat(config=Config, bind=bind)
