"""Prompt lengths in the model's tokenizer, as rendering.py gives them."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.pictures import with_pictures
from dagrpo.chat.rendering import TemplateRefusal, prompt_text
from dagrpo.core.errors import UserError
from dagrpo.core.types import Row

CHUNK = 256  # prompts at a time: token ids of all of them at once would need hundreds of megabytes


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    row: Row,
    schemas: Sequence[dict[str, Any]] = (),
    *,
    pictures: bool = False,
) -> str:
    """Return the prompt of a problem with its tools.

    pictures: whether the template takes pictures; each is one placeholder. Raises UserError, which names the problem, if the chat template
    refuses it.
    """
    messages = with_pictures(row.prompt) if pictures and row.images else row.prompt
    try:
        return prompt_text(tokenizer, messages, list(schemas))
    except TemplateRefusal as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"the chat template of {tokenizer.name_or_path} refuses the prompt of task {row.task}, {row.split} "
            f"row {row.index} ({reason}): choose another model, or another task."
        ) from None


def count_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text, as `render` would give them."""
    return [
        count for start in range(0, len(texts), CHUNK) for count in _counts(tokenizer, texts[start : start + CHUNK])
    ]


def _counts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    if tokenizer.is_fast:  # without each token's position in the text, which would take five times as long
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()  # its file may say otherwise
        backend.no_padding()
        encoded = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    return [len(token_ids) for token_ids in encoded["input_ids"]]
