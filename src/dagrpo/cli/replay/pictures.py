"""Pictures of recorded rollouts, read from the problems' split.

The table of rollouts does not contain them.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.models.pictures import takes_pictures
from dagrpo.rollout.prompts import read_split

PicturesOf = Callable[[int], tuple[bytes, ...]]  # by a problem's row in the split


def no_pictures(index: int) -> tuple[bytes, ...]:
    """Return the pictures of a problem for a model that takes text alone: none."""
    return ()


def pictures_of(initial: Path, split: Path) -> PicturesOf:
    """Return the lookup of the problems' pictures for a checkpoint's model; the split is read with the first lookup."""
    if not takes_pictures(initial):
        return no_pictures

    @cache
    def files() -> Mapping[int, tuple[bytes, ...]]:
        return {index: example.images for index, example in enumerate(read_split(split))}

    def of(index: int) -> tuple[bytes, ...]:
        if index not in files():
            raise UserError(
                f"{split} has no row {index}, which the rollouts are of: restore the file that they were made from."
            )
        return files()[index]

    return of
