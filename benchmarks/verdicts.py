"""Counts how often dagrpo, math-verify and verl's scorers agree with the verdicts of packages/dagrpo_answers/tests/verdicts.tsv.

    OMP_NUM_THREADS=1 python -m benchmarks.verdicts

The verdicts were written before any program was asked. math-verify reads as in its README. verl is this repository's writing of its
formulas (benchmarks/rewards.py): gsm8k strict or flexible, and math_dapo, which takes a box letter by letter without an `Answer:`.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import groupby

from benchmarks.rewards import (
    ANSWER,
    PUBLISHED_CHARACTERS,
    VERIFY_SECONDS,
    published_gsm8k,
    published_math_dapo,
    with_math_verify,
)
from packages.dagrpo_answers.tests.table import Row, rows

from dagrpo.rewards.grading import Grader
from dagrpo_answers.reading import last_boxed

CHARACTERS_OF_A_BOX = 100


def by_verl(row: Row) -> bool:
    """Return the verdict of verl's scorer for the row's task."""
    if row.verifier == "gsm8k":
        return published_gsm8k(row.text, row.ground_truth, flexible=row.extractor == "flexible")
    if ANSWER.search(row.text[-PUBLISHED_CHARACTERS:]):
        return published_math_dapo(row.text, row.ground_truth)
    return last_boxed(row.text[-CHARACTERS_OF_A_BOX:]) == row.ground_truth


def by_math_verify(row: Row) -> bool:
    """Return the verdict of math-verify on the whole text."""
    return with_math_verify(row.text, row.ground_truth)


def counted(table: Sequence[Row], verdicts: Sequence[bool]) -> list[str]:
    """Return agreements, wrong texts that were paid, and right ones that were refused."""
    pairs = [(row.right, right) for row, right in zip(table, verdicts, strict=True)]
    agreed, paid, refused = (sum(map(same, pairs)) for same in (_agree, _paid, _refused))
    return [str(agreed), str(paid), str(refused)]


def _agree(pair: tuple[bool, bool]) -> bool:
    return pair[0] is pair[1]


def _paid(pair: tuple[bool, bool]) -> bool:
    return pair == (False, True)


def _refused(pair: tuple[bool, bool]) -> bool:
    return pair == (True, False)


def main() -> None:
    """Print a line for each kind of text, and one for all."""
    logging.disable(logging.CRITICAL)  # math-verify's complaints
    table = rows()
    with Grader(VERIFY_SECONDS, 1) as grader:
        judges: list[Callable[[Row], bool]] = [lambda row: _right(grader, row), by_math_verify, by_verl]
        verdicts = [[judge(row) for row in table] for judge in judges]
    print(
        "| texts | number | dagrpo agrees | pays | refuses | math-verify agrees | pays | refuses | verl agrees | pays | refuses |"
    )
    print(f"|{'---|' * 11}")
    places = {kind: [at for at, _ in each] for kind, each in groupby(enumerate(table), key=lambda pair: pair[1].kind)}
    for kind, chosen in {**places, "all": range(len(table))}.items():
        cells = [
            cell for judged in verdicts for cell in counted([table[at] for at in chosen], [judged[at] for at in chosen])
        ]
        print(f"| {' | '.join([kind, str(len(chosen)), *cells])} |")


def _right(grader: Grader, row: Row) -> bool:
    (score,) = grader.judge([row.text], [row.ground_truth], [row.verifier], row.extractor)
    return score.verdict == "right"


if __name__ == "__main__":
    main()
