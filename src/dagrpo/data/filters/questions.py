"""Filters on questions: a readable answer, one each, no repeats; held-out ones."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.filters.sieve import Sieve
from dagrpo.data.filters.text import exact_identity, identity
from dagrpo.rewards.verifiers import get_verifier
from dagrpo_answers.own_text import answer_text

UNREADABLE = "unreadable answer"
CONFLICTING = "conflicting answers"
LONGEST_SHOWN = 40
REPEATED = "repeated question"
RETYPED = "repeated question, retyped"

Identity = Callable[[Row], tuple[str, ...]]


def drop_unreadable(sieve: Sieve, mode: Literal["refuse", "drop"]) -> None:
    """Drop problems whose ground truth, or source's own answer, their verifier cannot read.

    With mode `refuse`, raise UserError for the first. Without a source's answer the ground truth alone is read.
    """

    def fault(row: Row) -> str | None:
        field, text, complaint = (
            "ground_truth",
            row.ground_truth[:LONGEST_SHOWN],
            _complaint(row.verifier, row.ground_truth),
        )
        if complaint is None and _read(row) is None:
            field, text, complaint = "answer", _target(row)[-LONGEST_SHOWN:], "its answer is in another form"
        if complaint is not None and mode == "refuse":
            raise UserError(
                f"task {row.task}, {row.split} row {row.index}, field `{field}` is {text!r}, which the verifier "
                f"{row.verifier} cannot read ({complaint}): correct the data, or set data.unreadable_answers to drop."
            )
        return complaint

    for split in sieve.splits:
        sieve.drop(split, UNREADABLE, fault)


def drop_conflicting(sieve: Sieve) -> dict[str, int]:
    """Drop every question that a split has with different ground truths; return their number by split.

    Of train, problems go as well whose source's own answer is wrong by their ground truth.
    """
    sieve.drop("train", CONFLICTING, _contradiction)
    return {split: _drop_conflicting(sieve, split) for split in sieve.splits}


def _drop_conflicting(sieve: Sieve, split: str) -> int:
    by_question: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in sieve.splits[split]:
        by_question[identity(row)].append(row)
    details = {question: _listed(same) for question, same in by_question.items() if _differ(same)}
    sieve.drop(split, CONFLICTING, lambda row: details.get(identity(row)))
    return len(details)


def _contradiction(row: Row) -> str | None:
    answer = _read(row)
    if not answer or get_verifier(row.verifier).equal(answer, row.ground_truth) is not False:
        return None
    return f"answer: {answer[:LONGEST_SHOWN]}; ground truth: {row.ground_truth[:LONGEST_SHOWN]}"


def _target(row: Row) -> str:
    """Return the text that ends what supervised fine-tuning learns."""
    return str(row.demonstration[-1].get("content") or "") if row.demonstration else row.answer


def _read(row: Row) -> str | None:
    """Return what the verifier extracts of a source's answer; "" if it has no answer that can be read."""
    verifier, text = get_verifier(row.verifier), _target(row)
    if not text.strip() or not verifier.judges or verifier.by_report:
        return ""
    return verifier.extract(answer_text(text), "strict")


def _differ(same: Sequence[Row]) -> bool:
    truths = sorted({(row.verifier, row.ground_truth) for row in same})
    return any(not _agree(verifier, truth, truths[0][1]) for verifier, truth in truths[1:])


def _agree(verifier: str, one: str, other: str) -> bool:
    """Return True if two ground truths are the same answer. If only math-verify could tell, they count as different."""
    return one == other or get_verifier(verifier).equal(one, other) is True


def _listed(same: Sequence[Row]) -> str:
    rows = (f"row {row.index}: {row.ground_truth[:LONGEST_SHOWN]}" for row in same)
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
            first = {identity(row): row.index for row in reversed(sieve.splits[split])}
            sieve.drop("train", f"question also in {split}", _found_in(split, first))


def _repeats(identity_of: Identity) -> Callable[[Row], str | None]:
    first: dict[tuple[str, ...], int] = {}

    def fault(row: Row) -> str | None:
        key = identity_of(row)
        if key in first:
            return f"as row {first[key]}"
        first[key] = row.index
        return None

    return fault


def _found_in(split: str, indices: dict[tuple[str, ...], int]) -> Callable[[Row], str | None]:
    def fault(row: Row) -> str | None:
        index = indices.get(identity(row))
        return None if index is None else f"as {split} row {index}"

    return fault


def hold_out(sieve: Sieve, split: str, count: int, key: str, near: Collection[int] = ()) -> None:
    """Make a split of the `count` train problems with the smallest sha256 of the normalised question. `key`: that of the count.
    `near`: indices of problems that stay in train.

    The choice does not depend on their order, and a row that is added to the data replaces at most one of them. They keep their index and
    their order. Raises UserError if no train problem would remain.
    """
    train = sieve.splits["train"]
    apart = [row for row in train if row.index not in near]
    if count >= len(apart):
        raise UserError(
            f"data.{key} is {count}, but only {len(apart):,} problems are left to choose from: lower data.{key}."
        )
    chosen = {id(row) for row in sorted(apart, key=_rank)[:count]}
    sieve.splits[split] = [replace(row, split=split) for row in train if id(row) in chosen]
    sieve.splits["train"] = [row for row in train if id(row) not in chosen]


def _rank(row: Row) -> str:
    return hashlib.sha256("\n".join(identity(row)).encode()).hexdigest()
