"""Tables of texts, their ground truths, and whether they are right.

verdicts.tsv was decided before any program was asked; readings.tsv are texts that were once paid wrongly or refused wrongly.

A heading `# kind<TAB>verifier<TAB>extractor<TAB>form` holds for the rows below it, `+` (right) or `-` <TAB> ground truth <TAB> answer.
The answer stands at the form's `@`; `⏎` is the end of a line.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from dagrpo_answers.verifier import Extractor


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A text with its ground truth, and whether it is right."""

    kind: str
    verifier: str
    extractor: Extractor
    text: str
    ground_truth: str
    right: bool


def rows(name: str = "verdicts.tsv") -> list[Row]:
    """Return the rows of a table."""
    table = []
    for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            kind, verifier, extractor, form = line.removeprefix("# ").split("\t")
            continue
        sign, truth, answer = line.split("\t")
        text = form.replace("@", answer).replace("\u23ce", "\n")
        row = Row(
            kind=kind,
            verifier=verifier,
            extractor=cast(Extractor, extractor),
            text=text,
            ground_truth=truth,
            right=sign == "+",
        )
        table.append(row)
    return table
