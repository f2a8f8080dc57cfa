"""renderers: hand-written renderers of model families, from the library `renderers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dagrpo.chat.renderers import Chat, ChatFormat
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Family = Literal[
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "gemma4",
    "glm-4.5",
    "glm-5",
    "glm-5.1",
    "glm-5.3",
    "gpt-oss",
    "hy3",
    "inkling",
    "kimi-k2",
    "kimi-k2.5",
    "laguna-m.1",
    "laguna-s-2.1",
    "laguna-xs-2.1",
    "laguna-xs.2",
    "llama-3",
    "minimax-m2",
    "nemotron-3",
    "nemotron-3-ultra",
    "nemotron-3.5",
    "prime-qwen3",
    "qwen3",
    "qwen3-vl",
    "qwen3.5",
    "qwen3.6",
    "qwen3.8",
]

_Whole = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Number = Annotated[float, Field(ge=-1e9, le=1e9)]


class Config(Choice):
    """A family of models that the library `renderers` writes and reads."""

    name: Literal["renderers"] = Field("renderers", description="A family's renderer of the library `renderers`.")
    family: Family = Field(description="Family of the renderer. It is never guessed from the model's name.")
    options: Annotated[dict[str, str | bool | _Whole | _Number], Field(max_length=100)] = Field(
        default_factory=dict, description="Options of the family's renderer, such as {enable_thinking: false}."
    )


def bind(tokenizer: PreTrainedTokenizerBase, config: Config) -> ChatFormat:
    """Return the family's format. Raises UserError if the family lacks an option, or the tokenizer lacks the family's markers."""
    from dagrpo_renderers.family_format import family_format

    return family_format(tokenizer, config.family, config.options)


# A renderer would load and count pictures itself, by an image processor that is not the server's.
CHAT = Chat(config=Config, bind=bind, takes_pictures=False)
