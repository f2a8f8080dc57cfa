"""Image placeholders: `<image>` in text, runs of image tokens in token ids.

A run is as long as its picture takes tokens; models/pictures.py computes that length, and the pixels.
"""

import itertools
from collections.abc import Iterator, Sequence

from dagrpo.core.types import PictureTokens

IMAGE = "<image>"  # in the text of a problem's messages


def collapsed(token_ids: Sequence[int], tokens: PictureTokens) -> tuple[int, ...]:
    """Collapse each run of placeholders into one placeholder, as a server takes it, which makes the run itself."""
    return tuple(token for token, _ in _runs(token_ids, tokens))


def picture_lengths(token_ids: Sequence[int], tokens: PictureTokens) -> tuple[int, ...]:
    """Return how many tokens each picture takes, in order."""
    return tuple(run for token, run in _runs(token_ids, tokens) if token == tokens.image)


def with_lengths(token_ids: Sequence[int], tokens: PictureTokens, lengths: Sequence[int]) -> tuple[int, ...] | None:
    """Undo `collapsed`. Returns None if the placeholders are not as many as the lengths, or one is of a video."""
    if tokens.video in token_ids or sum(token == tokens.image for token in token_ids) != len(lengths):
        return None
    remaining = iter(lengths)
    return tuple(
        each for token in token_ids for each in ((token,) * next(remaining) if token == tokens.image else (token,))
    )


def before_pictures(token_ids: Sequence[int], tokens: PictureTokens) -> int:
    """Count the tokens before the first that begins a picture or a video."""
    return next((place for place, token in enumerate(token_ids) if token in tokens.unwritten), len(token_ids))


def _runs(token_ids: Sequence[int], tokens: PictureTokens) -> Iterator[tuple[int, int]]:
    """Yield each token once, with its count: a run of placeholders together, others by themselves."""
    for token, run in itertools.groupby(token_ids):
        length = len(list(run))
        yield from [(token, length)] if token == tokens.image else [(token, 1)] * length
