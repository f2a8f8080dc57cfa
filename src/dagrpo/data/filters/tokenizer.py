"""Prompt lengths in the model's tokenizer, as rendering.py gives them."""

import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.pictures import with_pictures
from dagrpo.chat.rendering import prompt_text
from dagrpo.chat.templates import TemplateRefusal
from dagrpo.core.errors import UserError
from dagrpo.core.types import Row

CHUNK = 256  # prompts at a time: token ids of all of them at once would need hundreds of megabytes
TRIAL = 16  # prompts counted both ways before the short way is taken


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


class TokenCounter:
    """Counter of prompt tokens.

    A special token cuts a text into parts that are tokenized separately. A part that stands in every prompt, such as the system turn with
    its tools, is counted once. A few prompts are also counted whole: if the two counts differ, as with a tokenizer that marks where a text
    begins, all are counted whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._cut = _at_special_tokens(tokenizer)
        self._lengths: dict[str, int] = {}

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, as `render` would give them."""
        trial = texts[:TRIAL]
        count = self._by_parts if self._by_parts(trial) == self._whole(trial) else self._whole
        return [number for start in range(0, len(texts), CHUNK) for number in count(texts[start : start + CHUNK])]

    def _by_parts(self, texts: Sequence[str]) -> list[int]:
        parts = [[part for part in self._cut.split(text) if part] for text in texts]
        unknown = list({part: None for cut in parts for part in cut if part not in self._lengths})
        self._lengths.update(zip(unknown, self._without_places(unknown), strict=True))
        return [sum(self._lengths[part] for part in cut) for cut in parts]

    def _without_places(self, texts: Sequence[str]) -> list[int]:
        """Count without computing each token's position in the text, which takes a fifth of the time."""
        if not self._tokenizer.is_fast:
            return self._whole(texts)
        encoded = self._tokenizer.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding) for encoding in encoded]

    def _whole(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        encoded = self._tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [len(token_ids) for token_ids in encoded["input_ids"]]


def _at_special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Return a pattern of the special tokens that neither swallow white space nor depend on their neighbours."""
    plain = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    ]
    return re.compile(f"({'|'.join(map(re.escape, plain))})" if plain else r"(?!)")
