"""Encode message text without special tokens; map text to tokens.

A tool's result may hold `<|im_end|>` or `<|image_pad|>`, because the policy's own program printed it. The template's
framing becomes special tokens; the same characters within a message are encoded like any others.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import Message

_BEGIN, _END = "\ufdd0", "\ufdd1"  # Unicode's noncharacters, which no text is to hold
_GUARDED = re.compile(f"{_BEGIN}(\\d+){_END}")


class Tokens:
    """Encoding and decoding of a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self.special = sorted({*added, *tokenizer.all_special_tokens}, key=lambda token: (-len(token), token))
        self._pattern = any_of(self.special)

    def guarded(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Return messages, or the schemas of tools, with stand-ins for special tokens in all of their texts."""
        return [_mapped(message, self._guard) for message in messages]

    def parted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with a space in each special token that they name, for a renderer that knows no stand-ins."""
        return [_mapped(message, self._part) for message in messages]

    def restored(self, text: str) -> str:
        """Return the text with stand-ins replaced by their special tokens."""
        return _GUARDED.sub(lambda match: self.special[int(match[1])], text)

    def encoded(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text that may hold stand-ins."""
        if _BEGIN not in text:
            return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        token_ids: list[int] = []
        for position, piece in enumerate(_GUARDED.split(text)):
            is_special = position % 2 == 1  # the numbers of stand-ins are every second piece
            piece = self.special[int(piece)] if is_special else piece
            token_ids += self._tokenizer(piece, add_special_tokens=False, split_special_tokens=is_special)["input_ids"]
        return tuple(token_ids)

    def decoded(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def id_of(self, token: str) -> int:
        """Return the id of an existing token."""
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        assert isinstance(token_id, int)
        return token_id

    def _guard(self, text: str) -> str:
        return self._pattern.sub(
            lambda match: f"{_BEGIN}{self.special.index(match[0])}{_END}", _without_stand_ins(text)
        )

    def _part(self, text: str) -> str:
        return self._pattern.sub(lambda match: f"{match[0][:1]} {match[0][1:]}", _without_stand_ins(text))


def _without_stand_ins(text: str) -> str:
    """Return a text of messages in which nothing looks like a stand-in."""
    return text.replace(_BEGIN, "\ufffd").replace(_END, "\ufffd")


def _mapped(message: Mapping[str, Any], change: Callable[[str], str]) -> Message:
    """Return a message with every text in it changed, but for its role."""
    return {key: value if key == "role" else _changed(value, change) for key, value in message.items()}


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(key, change): _changed(inner, change) for key, inner in value.items()}
    return [_changed(inner, change) for inner in value] if isinstance(value, list | tuple) else value


def any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the texts, the longest first; it matches nothing without texts."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")


class TokenSpans:
    """Index of the characters that each token of a completion adds to its text.

    A character that several tokens form belongs to the last of them, and those before it add none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> None:
        backend, stream = tokenizer.backend_tokenizer, DecodeStream(skip_special_tokens=False)
        lengths = [len(stream.step(backend, token) or "") for token in token_ids]
        self._ends = list(accumulate(lengths))  # [tokens], characters up to and with each

    def of(self, start: int, end: int) -> tuple[int, int]:
        """Return the first token that adds a character of text[start:end], and one past the last."""
        first = bisect_right(self._ends, start)
        while first and self._ends[first - 1] == (self._ends[first - 2] if first > 1 else 0) == start:
            first -= 1  # tokens that hold the beginning of the first character
        return first, min(bisect_left(self._ends, end) + 1, len(self._ends))
