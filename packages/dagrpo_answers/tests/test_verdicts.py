"""The tables of verdicts: every text is judged as a person judged it."""

import pytest
from packages.dagrpo_answers.tests.table import rows

from dagrpo_answers import Judge

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
