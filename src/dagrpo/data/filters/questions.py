"""Filters on questions: a readable answer, one each, no repeats; held-out ones."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

from dagrpo.core.errors import UserError
from dagrpo.core.types import Example
from dagrpo.data.filters.sieve import Sieve
from dagrpo.data.filters.text import exact_identity, identity
from dagrpo.rewards.verifiers import get_verifier

UNREADABLE = "unreadable answer"
CONFLICTING = "conflicting answers"
LONGEST_SHOWN = 40
REPEATED = "repeated question"
RETYPED = "repeated question, retyped"

Identity = Callable[[Example], tuple[str, ...]]


def drop_unreadable(sieve: Sieve, mode: Literal["refuse", "drop"]) -> None:
    """Drop problems whose ground truth their verifier cannot read; with mode `refuse`, raise UserError for the first."""

    def fault(example: Example) -> str | None:
        complaint = _complaint(example.verifier, example.ground_truth)
        if complaint is not None and mode == "refuse":
            raise UserError(
                f"task {example.task}, {example.split} row {example.index}, field `ground_truth` is "
                f"{example.ground_truth[:LONGEST_SHOWN]!r}, which the verifier {example.verifier} cannot read "
                f"({complaint}): correct the data, or set data.unreadable_answers to drop."
            )
        return complaint

    for split in sieve.splits:
        sieve.drop(split, UNREADABLE, fault)


def drop_conflicting(sieve: Sieve) -> dict[str, int]:
    """Drop every question that a split has with different ground truths; return their number by split."""
    return {split: _drop_conflicting(sieve, split) for split in sieve.splits}


def _drop_conflicting(sieve: Sieve, split: str) -> int:
    by_question: dict[tuple[str, ...], list[Example]] = defaultdict(list)
    for example in sieve.splits[split]:
        by_question[identity(example)].append(example)
    details = {question: _listed(same) for question, same in by_question.items() if _differ(same)}
    sieve.drop(split, CONFLICTING, lambda example: details.get(identity(example)))
    return len(details)


def _differ(same: Sequence[Example]) -> bool:
    truths = sorted({(example.verifier, example.ground_truth) for example in same})
    return any(not _agree(verifier, truth, truths[0][1]) for verifier, truth in truths[1:])


def _agree(verifier: str, one: str, other: str) -> bool:
    """Return True if two ground truths are the same answer. If only math-verify could tell, they count as different."""
    return one == other or get_verifier(verifier).equal(one, other) is True


def _listed(same: Sequence[Example]) -> str:
    rows = (f"row {example.index}: {example.ground_truth[:LONGEST_SHOWN]}" for example in same)
    return "; ".join(rows)


@cache
def _complaint(verifier: str, ground_truth: str) -> str | None:
    try:
        get_verifier(verifier).check(ground_truth)
    except UserError as error:
        return str(error).rstrip(".")
    return None


def drop_repeated(sieve: Sieve) -> None:
    """Drop repeats within each split, then every train problem that another split asks too."""
    for split in sieve.splits:
        sieve.drop(split, REPEATED, _repeats(exact_identity))
        sieve.drop(split, RETYPED, _repeats(identity))
    for split in sieve.splits:
        if split != "train":
            first = {identity(example): example.index for example in reversed(sieve.splits[split])}
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


def hold_out(sieve: Sieve, count: int) -> None:
    """Make a test split of the `count` train problems with the smallest sha256 of the normalised question.

    The choice does not depend on their order, and a row that is added to the data replaces at most one of them. They keep their index and
    their order. Raises UserError if no train problem would remain.
    """
    train = sieve.splits["train"]
    if count >= len(train):
        raise UserError(
            f"data.held_out is {count}, but only {len(train):,} problems are left to choose from: lower data.held_out."
        )
    chosen = {id(example) for example in sorted(train, key=_rank)[:count]}
    sieve.splits["test"] = [replace(example, split="test") for example in train if id(example) in chosen]
    sieve.splits["train"] = [example for example in train if id(example) not in chosen]


def _rank(example: Example) -> str:
    return hashlib.sha256("\n".join(identity(example)).encode()).hexdigest()
