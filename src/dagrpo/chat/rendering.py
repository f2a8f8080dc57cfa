"""Render chat messages to prompt tokens, and decode completions.

Training and evaluation share these functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.templates import render_template
from dagrpo.core.errors import UserError


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[str, tuple[int, ...]]:
    """Return the prompt as the tokenizer's chat template writes it, and its tokens. Raises UserError without a template.

    tools: OpenAI function schemas; a template without support for tools leaves them out.
    """
    text = prompt_text(tokenizer, messages, tools)
    return text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the prompt as text, ready to be tokenized unchanged. Raises UserError and TemplateRefusal as in dagrpo.chat.templates."""
    return template_text(tokenizer, messages, tools, add_generation_prompt=True)


def template_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
) -> str:
    """Return what `tokenizer.apply_chat_template` gives, within limits of characters."""
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer of {tokenizer.name_or_path} has no chat template: use a model that has one.")
    offered: Any = [dict(tool) for tool in tools] or None
    variables = {
        **tokenizer.special_tokens_map,
        "messages": [dict(message) for message in messages],
        "tools": offered,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    return render_template(chosen_template(tokenizer, offered), variables, tokenizer.name_or_path)


def chosen_template(tokenizer: PreTrainedTokenizerBase, tools: Any = None) -> str:
    """Return the tokenizer's chat template, of several the one that fits `tools`. Raises UserError without one."""
    try:
        template: str = tokenizer.get_chat_template(tools=tools)
    except (ValueError, TypeError, AttributeError):  # several, and none of them the default
        template = ""
    if not isinstance(template, str) or not template:
        raise UserError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template that is a text: use a model that has one."
        )
    return template


def completion_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the completion's text without special tokens; nothing is cleaned up."""
    # Of an array: transformers would look at each item of a list.
    text = tokenizer.decode(np.array(token_ids, np.int64), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text
