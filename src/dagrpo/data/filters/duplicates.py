"""Filters on repeated questions: the first stays, and test stays whole."""

from collections.abc import Callable

from dagrpo.core.types import Example
from dagrpo.data.filters.sieve import Sieve
from dagrpo.data.filters.text import exact_identity, identity

REPEATED = "repeated question"
RETYPED = "repeated question, retyped"

Identity = Callable[[Example], tuple[str, ...]]


def drop_repeated(sieve: Sieve) -> None:
    """Drop repeats within each split, then every train problem that another split asks too."""
    for split in sieve.kept:
        sieve.drop(split, REPEATED, _repeats(exact_identity))
        sieve.drop(split, RETYPED, _repeats(identity))
    for split in sieve.kept:
        if split != "train":
            first = {identity(example): example.index for example in reversed(sieve.kept[split])}
            sieve.drop("train", f"question also in {split}", _found_in(split, first))


def _repeats(identity_of: Identity) -> Callable[[Example], str | None]:
    first: dict[tuple[str, ...], int] = {}

    def fault(example: Example) -> str | None:
        key = identity_of(example)
        if key in first:
            return f"as row {first[key]}"
        first[key] = example.index
        return None

    return fault


def _found_in(split: str, rows: dict[tuple[str, ...], int]) -> Callable[[Example], str | None]:
    def fault(example: Example) -> str | None:
        row = rows.get(identity(example))
        return None if row is None else f"as {split} row {row}"

    return fault
