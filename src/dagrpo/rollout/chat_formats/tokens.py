"""Text to tokens and back, with one rule: what is said in a conversation never becomes a special token.

A tool's result may hold `<|im_end|>` or `<|image_pad|>`, because the policy's own program printed it. The template's
framing becomes special tokens; the same characters within a message are encoded as any others are.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from dagrpo.rollout.chat import Message

_BEGIN, _END = "\ufdd0", "\ufdd1"  # Unicode's noncharacters, which no text is to hold
_GUARDED = re.compile(f"{_BEGIN}(\\d+){_END}")


class Tokens:
    """A tokenizer's encoding and decoding."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self.special = sorted({*added, *tokenizer.all_special_tokens}, key=lambda token: (-len(token), token))
        self._pattern = any_of(self.special)

    def guarded(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with stand-ins for special tokens in what they say."""
        return [_mapped(message, self._guard) for message in messages]

    def parted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with a space in each special token that they name, for a renderer that knows no stand-ins."""
        return [_mapped(message, self._part) for message in messages]

    def restored(self, text: str) -> str:
        """The text with what the stand-ins stand for."""
        return _GUARDED.sub(lambda match: self.special[int(match[1])], text)

    def encoded(self, text: str) -> tuple[int, ...]:
        """The tokens of a text in which stand-ins may be."""
        if _BEGIN not in text:
            return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        token_ids: list[int] = []
        for position, piece in enumerate(_GUARDED.split(text)):
            said = position % 2 == 1  # the numbers of stand-ins are every second piece
            piece = self.special[int(piece)] if said else piece
            token_ids += self._tokenizer(piece, add_special_tokens=False, split_special_tokens=said)["input_ids"]
        return tuple(token_ids)

    def decoded(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def id_of(self, token: str) -> int:
        """The id of a token that there is."""
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        assert isinstance(token_id, int)
        return token_id

    def _guard(self, text: str) -> str:
        return self._pattern.sub(lambda match: f"{_BEGIN}{self.special.index(match[0])}{_END}", text)

    def _part(self, text: str) -> str:
        return self._pattern.sub(lambda match: f"{match[0][:1]} {match[0][1:]}", text)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A message with every text in it changed, but for its role."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: inner if key == "role" else _mapped(inner, change) for key, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, list) else value


def any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """Matches any of some texts, the longest first; nothing where there is none."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")
