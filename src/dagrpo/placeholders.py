"""Where pictures stand: `<image>` in the text of a problem, a run of placeholders among a model's tokens.

A run is as long as its picture takes tokens. Not here: how long that is (models/pictures.py), and the pixels.
"""

import itertools
from collections.abc import Iterator, Sequence

from dagrpo.records import PictureTokens

IMAGE = "<image>"  # in the text of a problem's messages


def collapsed(token_ids: Sequence[int], tokens: PictureTokens) -> tuple[int, ...]:
    """Each run of placeholders as one placeholder: what a server is sent, which makes the run itself."""
    return tuple(token for token, _ in _runs(token_ids, tokens))


def picture_lengths(token_ids: Sequence[int], tokens: PictureTokens) -> tuple[int, ...]:
    """How many tokens each picture takes, in order."""
    return tuple(run for token, run in _runs(token_ids, tokens) if token == tokens.image)


def with_lengths(token_ids: Sequence[int], tokens: PictureTokens, lengths: Sequence[int]) -> tuple[int, ...] | None:
    """The other way of `collapsed`. None: there are not as many placeholders as lengths, or there is one of a video."""
    if tokens.video in token_ids or sum(token == tokens.image for token in token_ids) != len(lengths):
        return None
    left = iter(lengths)
    return tuple(each for token in token_ids for each in ((token,) * next(left) if token == tokens.image else (token,)))


def before_pictures(token_ids: Sequence[int], tokens: PictureTokens) -> int:
    """How many tokens come before the first that begins a picture or a video."""
    return next((place for place, token in enumerate(token_ids) if token in tokens.unwritten), len(token_ids))


def _runs(token_ids: Sequence[int], tokens: PictureTokens) -> Iterator[tuple[int, int]]:
    """Each token once, with how often: a run of placeholders together, others by themselves."""
    for token, run in itertools.groupby(token_ids):
        length = len(list(run))
        yield from [(token, length)] if token == tokens.image else [(token, 1)] * length
