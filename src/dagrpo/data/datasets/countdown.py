"""Countdown: make a target from three or four numbers.

Each number is used once. The data set gives no solutions.
"""

import json

from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import chat

SOURCE = Source(
    repository="Jiayi-Pan/Countdown-Tasks-3to4",
    revision="408f70d177020686d34a56bba5952feb45aaaee4",
    hub_splits={"train": "train"},
    mirror_files={"train": "countdown/train.parquet"},
    columns={"numbers": ("nums", "numbers"), "target": ("target",)},
    rows={"train": 490_364},
)
INSTRUCTION = (
    "You may add, subtract, multiply, divide and use parentheses. Think step by step, and close with the expression alone "
    "in <answer></answer>, such as <answer>(1 + 2) / 3</answer>."
)


def to_row(raw: RawRow) -> Row:
    """Return one raw row in its prompt form; the ground truth is JSON, as the verifier reads it."""
    numbers, target = raw.integers("numbers"), raw.integer("target")
    listed = ", ".join(str(number) for number in numbers)
    question = f"Write an expression whose value is {target}, with each of the numbers {listed} exactly once."
    return Row(
        prompt=chat(f"{question} {INSTRUCTION}"),
        question=question,
        answer="",
        ground_truth=json.dumps({"numbers": list(numbers), "target": target}),
    )


TASKS = (sourced_task("countdown", SOURCE, to_row, verifier="countdown"),)
