"""GPQA Diamond: 198 questions of science, for evaluation only.

Rein et al. 2023, arXiv:2311.12022. The order of a question's options follows from the question, so that all runs show the same. The
data set is gated: accept its terms on the hub, and give HF_TOKEN.
"""

import random

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
SOURCE = Source(
    repository="Idavidrein/gpqa",
    configuration="gpqa_diamond",
    revision="633f5ee89ab8ad4522a9f850766b73f62147ffdd",
    hub_splits={"test": "train"},
    mirror_files={"test": "gpqa/gpqa_diamond.csv"},
    columns={name: (name,) for name in ("Question", "Correct Answer", *WRONG, "High-level domain")},
    rows={"test": 198},
    untested=True,
)
INSTRUCTION = 'Think step by step, and then finish with "The answer is (X)", where X is the letter of the right choice.'


def to_row(raw: RawRow) -> Row:
    """Return one row, its choices in an order drawn by its question."""
    question, right = raw.text("Question").strip(), raw.text("Correct Answer").strip()
    choices = [right, *(raw.text(name).strip() for name in WRONG)]
    random.Random(f"gpqa/{question}").shuffle(choices)
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    letter = "ABCD"[choices.index(right)]
    return Row(
        prompt=chat(f"What is the correct answer to this question: {question}\n\nChoices:\n{listed}\n\n{INSTRUCTION}"),
        question=f"{question}\n{listed}",
        answer=f"The answer is ({letter}).",
        ground_truth=letter,
        ability=raw.text("High-level domain"),
    )


TASKS = (sourced_task("gpqa", SOURCE, to_row, verifier="choice"),)
