"""A test split for a data set that has none."""

import hashlib
from dataclasses import replace

from dagrpo.core.errors import UserError
from dagrpo.core.types import Example
from dagrpo.data.filters.sieve import Sieve
from dagrpo.data.filters.text import identity


def hold_out(sieve: Sieve, count: int) -> None:
    """Make the `count` train problems with the smallest sha256 of the normalised question the test split.

    The choice does not depend on their order, and a row that is added to the data replaces at most one of them. They
    keep their index and their order. UserError when nothing would be left to train on.
    """
    train = sieve.kept["train"]
    if count >= len(train):
        raise UserError(
            f"data.held_out is {count}, but only {len(train):,} problems are left to choose from: lower data.held_out."
        )
    chosen = {id(example) for example in sorted(train, key=_rank)[:count]}
    sieve.kept["test"] = [replace(example, split="test") for example in train if id(example) in chosen]
    sieve.kept["train"] = [example for example in train if id(example) not in chosen]


def _rank(example: Example) -> str:
    return hashlib.sha256("\n".join(identity(example)).encode()).hexdigest()
