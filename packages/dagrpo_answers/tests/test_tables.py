"""The tables: every text is judged as a person judged it, read as in extractions.tsv, compared as in equalities.tsv.

extractions.tsv: the answers by strict, flexible and exact, and the text. ∅: none; ·: not said. ⏎ and ␉ are the end of a line and a tab.
equalities.tsv: + (equal), - or ? (math-verify decides), ground truth, answer. A heading names the verifier.
"""

from pathlib import Path
from typing import get_args

import pytest
from packages.dagrpo_answers.tests.table import rows

from dagrpo_answers import Judge
from dagrpo_answers.verifier import Extractor
from dagrpo_answers.verifiers import get_verifier

ROWS = [*rows(), *rows("readings.tsv")]


@pytest.mark.parametrize("kind", dict.fromkeys(row.kind for row in ROWS))
def test_every_text_has_the_verdict_of_its_table(kind: str, judge: Judge) -> None:
    table = [row for row in ROWS if row.kind == kind]
    (extractor,) = {row.extractor for row in table}
    judged = judge.judge(
        [row.text for row in table],
        [row.ground_truth for row in table],
        [row.verifier for row in table],
        extractor,
    )
    assert [
        (row.ground_truth, row.text, score.answer, score.verdict)
        for row, score in zip(table, judged, strict=True)
        if (score.verdict == "right") != row.right
    ] == []


def _sections(name: str) -> dict[str, list[list[str]]]:
    """Return the rows of each verifier."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    sections = (section.split("\n") for section in text.removeprefix("# ").rstrip("\n").split("\n# "))
    return {verifier: [row.replace("\u23ce", "\n").split("\t") for row in section] for verifier, *section in sections}


EXTRACTIONS, EQUALITIES = _sections("extractions.tsv"), _sections("equalities.tsv")


@pytest.mark.parametrize("name", EXTRACTIONS)
def test_every_text_is_read_as_in_its_table(name: str) -> None:
    verifier = get_verifier(name)
    for *expected, row in EXTRACTIONS[name]:
        text = row.replace("\u2409", "\t")
        for extractor, answer in zip(get_args(Extractor), expected, strict=True):
            if answer != "\u00b7":
                assert verifier.extract(text, extractor) == (None if answer == "\u2205" else answer), (text, extractor)
        assert verifier.formatted(text) == (verifier.extract(text, "strict") is not None)


@pytest.mark.parametrize("name", EQUALITIES)
def test_answers_are_equal_different_or_left_to_math_verify_as_in_the_table(name: str) -> None:
    same = {"+": True, "-": False, "?": None}
    for sign, truth, answer in EQUALITIES[name]:
        assert get_verifier(name).equal(answer, truth) is same[sign], (answer, truth)
