"""MMLU-Pro: questions with up to ten options (Wang et al. 2024, arXiv:2406.01574).

12,032 questions of 14 subjects, for evaluation only.
"""

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="TIGER-Lab/MMLU-Pro",
    revision="b189ec765aa7ed75c8acfea42df31fdae71f97be",
    hub_splits={"test": "test"},
    mirror_files={"test": "mmlu_pro/test.parquet"},
    columns={name: (name,) for name in ("question", "options", "answer", "category")},
    rows={"test": 12_032},
    untested=True,
)
INSTRUCTION = (
    "The following is a multiple choice question about {}. Think step by step, and then finish with "
    '"the answer is (X)", where X is the letter of the right option.'
)
LETTERS = "ABCDEFGHIJ"


def to_row(raw: RawRow) -> Row:
    """Return one row. Raises UserError if its answer is not the letter of one of at most ten options."""
    question, options, answer = raw.text("question").strip(), raw.texts("options"), raw.text("answer")
    if len(options) > len(LETTERS) or answer not in LETTERS[: len(options)]:
        raise raw.error("answer", f"is no letter of its {len(options)} options")
    listed = "\n".join(f"{letter}. {option.strip()}" for letter, option in zip(LETTERS, options, strict=False))
    subject = raw.text("category")
    return Row(
        prompt=chat(f"{INSTRUCTION.format(subject)}\n\nQuestion:\n{question}\nOptions:\n{listed}"),
        question=f"{question}\n{listed}",
        answer=f"The answer is ({answer}).",
        ground_truth=answer,
        ability=subject,
    )


TASKS = (sourced_task("mmlu_pro", SOURCE, to_row, verifier="choice"),)
