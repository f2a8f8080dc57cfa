"""Filter on difficulty: pass rates from an earlier experiment's file."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.filters.sieve import Sieve
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import read_parquet

TOO_HARD = "pass rate below data.min_pass_rate"
TOO_EASY = "pass rate above data.max_pass_rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRates:
    """The findings of a file of pass rates, for the card."""

    sha256: str
    known: Mapping[str, int]  # split -> problems that have a pass rate from it
    ambiguous: int  # questions that the file rates more than once, as of two figures: not taken


def add_pass_rates(sieve: Sieve, path: Path, *, must_match: bool) -> PassRates:
    """Set the pass rate of each problem whose question is in the file.

    The file has columns question_sha256 (of the question's UTF-8, in hex) and pass_rate. Raises UserError if it is missing or damaged, or,
    with `must_match`, if it rates none of the train problems.
    """
    rates, ambiguous = _read(path)
    counts = {}
    for split, rows in sieve.splits.items():
        rated = [rates.get(_digest(row)) for row in rows]
        counts[split] = sum(rate is not None for rate in rated)
        sieve.splits[split] = [
            row if rate is None else replace(row, pass_rate=rate) for row, rate in zip(rows, rated, strict=True)
        ]
    if must_match and sieve.splits["train"] and not any(counts.values()):
        raise UserError(
            f"data.pass_rates is {path}, but none of the {len(rates):,} questions it rates is among the problems of this "
            "task: name the file of an experiment that trains on the same task, or set it to null."
        )
    return PassRates(sha256=sha256_of(path), known=counts, ambiguous=ambiguous)


def drop_by_pass_rate(sieve: Sieve, lowest: float, highest: float) -> None:
    """Drop train problems whose pass rate is known and out of range. Test problems are never selected by pass rate."""

    def too_hard(row: Row) -> str | None:
        rate = row.pass_rate
        return None if rate is None or rate >= lowest else f"pass rate {rate:.4g}"

    def too_easy(row: Row) -> str | None:
        rate = row.pass_rate
        return None if rate is None or rate <= highest else f"pass rate {rate:.4g}"

    sieve.drop("train", TOO_HARD, too_hard)
    sieve.drop("train", TOO_EASY, too_easy)


def _read(path: Path) -> tuple[dict[str, float], int]:
    """Return the pass rates by question, and the number of questions that are left out since they are rated more than once."""
    if not path.is_file():
        raise UserError(f"data.pass_rates is {path}, which is not a file: correct it, or set it to null.")
    table = read_parquet(path)
    for column in ("question_sha256", "pass_rate"):
        if column not in table.column_names:
            raise UserError(
                f"{path} (data.pass_rates) has no column `{column}`: name a difficulty.parquet, or set it to null."
            )
    rates: dict[str, float] = {}
    ratings: Counter[str] = Counter()
    pairs = zip(table["question_sha256"].to_pylist(), table["pass_rate"].to_pylist(), strict=True)
    for row, (question, rate) in enumerate(pairs):
        if rate is not None:
            rates[question] = _checked(rate, path, row)
            ratings[question] += 1
    single = {question: rate for question, rate in rates.items() if ratings[question] == 1}
    return single, len(rates) - len(single)


def _checked(rate: object, path: Path, row: int) -> float:
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise UserError(
            f"{path}, row {row}, field `pass_rate` is {rate!r}, not a number from 0 to 1: correct the file that "
            "data.pass_rates names."
        )
    return float(rate)


def _digest(row: Row) -> str:
    return hashlib.sha256(row.question.encode()).hexdigest()
