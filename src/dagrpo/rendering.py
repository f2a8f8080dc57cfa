"""Chat messages to prompt tokens, and completion tokens to text, the same way in training and in evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.errors import UserError


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[str, tuple[int, ...]]:
    """The prompt as the tokenizer's chat template writes it, and its tokens; UserError without a template.

    tools: OpenAI function schemas; a template that knows none of tools leaves them out.
    """
    text = prompt_text(tokenizer, messages, tools)
    return text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt as text, ready to be tokenized as it stands."""
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer of {tokenizer.name_or_path} has no chat template: use a model that has one.")
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tools=[dict(tool) for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert isinstance(text, str)
    return text


def completion_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """What the policy wrote, without special tokens; nothing is cleaned up."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text
