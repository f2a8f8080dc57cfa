"""Where pictures stand in a task's text, and among a model's tokens: there one run of placeholders each, as long as the picture
takes tokens.

Not here: how long that is (models/pictures.py), and the pixels.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagrpo.records import PictureTokens

IMAGE = "<image>"  # where a picture stands in a task's prompt


def in_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages of text -> what a chat template of a vision-language model takes: text and pictures in turn.

    Example: "<image> Find x." -> [{"type": "image"}, {"type": "text", "text": " Find x."}]. Only what a task says is cut, not
    an answer of the policy or of a tool, which may hold the same characters.
    """
    return [_cut(message) if message["role"] in ("system", "user") else message for message in messages]


def _cut(message: Mapping[str, Any]) -> Mapping[str, Any]:
    said = message["content"]
    if not isinstance(said, str) or IMAGE not in said:
        return message
    first, *others = [[{"type": "text", "text": text}] if text else [] for text in said.split(IMAGE)]
    return {**message, "content": [*first, *(part for text in others for part in ({"type": "image"}, *text))]}


def collapsed(token_ids: Sequence[int], tokens: PictureTokens) -> tuple[int, ...]:
    """Each run of placeholders as one placeholder: what a server is sent, which makes the run itself."""
    return tuple(token for token, _ in _runs(token_ids, tokens))


def picture_lengths(token_ids: Sequence[int], tokens: PictureTokens) -> tuple[int, ...]:
    """How many tokens each picture takes, in order."""
    return tuple(run for token, run in _runs(token_ids, tokens) if token == tokens.image)


def with_lengths(token_ids: Sequence[int], tokens: PictureTokens, lengths: Sequence[int]) -> tuple[int, ...] | None:
    """The other way of `collapsed`. None: there are not as many placeholders as lengths."""
    if sum(token == tokens.image for token in token_ids) != len(lengths):
        return None
    left = iter(lengths)
    return tuple(each for token in token_ids for each in ((token,) * next(left) if token == tokens.image else (token,)))


def before_pictures(token_ids: Sequence[int], tokens: PictureTokens) -> int:
    """How many tokens come before the first placeholder of a picture or a video."""
    placeholders = (tokens.image, tokens.video)
    return next((place for place, token in enumerate(token_ids) if token in placeholders), len(token_ids))


def _runs(token_ids: Sequence[int], tokens: PictureTokens) -> Iterator[tuple[int, int]]:
    """Each token once, with how often: a run of placeholders together, others by themselves."""
    for token, run in itertools.groupby(token_ids):
        length = len(list(run))
        yield from [(token, length)] if token == tokens.image else [(token, 1)] * length
