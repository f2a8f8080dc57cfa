"""Map a span of decoded text to its tokens."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase


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
