"""Questions with options, for evaluation only: GPQA Diamond and MMLU-Pro."""

import random

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
# 198 questions of science (Rein et al. 2023, arXiv:2311.12022). The data set is gated: accept its terms on the hub, and give HF_TOKEN.
GPQA = Source(
    repository="Idavidrein/gpqa",
    configuration="gpqa_diamond",
    revision="633f5ee89ab8ad4522a9f850766b73f62147ffdd",
    hub_splits={"test": "train"},
    mirror_files={"test": "gpqa/gpqa_diamond.csv"},
    columns={name: (name,) for name in ("Question", "Correct Answer", *WRONG, "High-level domain")},
    rows={"test": 198},
    untested=True,
)
# 12,032 questions of 14 subjects with up to ten options (Wang et al. 2024, arXiv:2406.01574).
MMLU_PRO = Source(
    repository="TIGER-Lab/MMLU-Pro",
    revision="b189ec765aa7ed75c8acfea42df31fdae71f97be",
    hub_splits={"test": "test"},
    mirror_files={"test": "mmlu_pro/test.parquet"},
    columns={name: (name,) for name in ("question", "options", "answer", "category")},
    rows={"test": 12_032},
    untested=True,
)
GPQA_INSTRUCTION = (
    'Think step by step, and then finish with "The answer is (X)", where X is the letter of the right choice.'
)
MMLU_PRO_INSTRUCTION = (
    "The following is a multiple choice question about {}. Think step by step, and then finish with "
    '"the answer is (X)", where X is the letter of the right option.'
)
LETTERS = "ABCDEFGHIJ"


def gpqa_question(raw: RawRow) -> Row:
    """Return one row of GPQA, its choices in an order drawn by its question, so that all runs show the same."""
    question, right = raw.text("Question").strip(), raw.text("Correct Answer").strip()
    choices = [right, *(raw.text(name).strip() for name in WRONG)]
    random.Random(f"gpqa/{question}").shuffle(choices)
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    prompt = f"What is the correct answer to this question: {question}\n\nChoices:\n{listed}\n\n{GPQA_INSTRUCTION}"
    return _asked(prompt, f"{question}\n{listed}", LETTERS[choices.index(right)], raw.text("High-level domain"))


def mmlu_pro_question(raw: RawRow) -> Row:
    """Return one row of MMLU-Pro. Raises UserError if its answer is not the letter of one of at most ten options."""
    question, options, answer = raw.text("question").strip(), raw.texts("options"), raw.text("answer")
    if len(options) > len(LETTERS) or answer not in LETTERS[: len(options)]:
        raise raw.error("answer", f"is no letter of its {len(options)} options")
    listed = "\n".join(f"{letter}. {option.strip()}" for letter, option in zip(LETTERS, options, strict=False))
    subject = raw.text("category")
    prompt = f"{MMLU_PRO_INSTRUCTION.format(subject)}\n\nQuestion:\n{question}\nOptions:\n{listed}"
    return _asked(prompt, f"{question}\n{listed}", answer, subject)


def _asked(prompt: str, question: str, letter: str, ability: str) -> Row:
    return Row(
        prompt=chat(prompt),
        question=question,
        answer=f"The answer is ({letter}).",
        ground_truth=letter,
        ability=ability,
    )


TASKS = (
    sourced_task("gpqa", GPQA, gpqa_question, verifier="choice"),
    sourced_task("mmlu_pro", MMLU_PRO, mmlu_pro_question, verifier="choice"),
)
