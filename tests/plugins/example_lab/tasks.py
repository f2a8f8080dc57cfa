"""A task of our own: whether a number is even, with a verifier of our own."""

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.task import Task, TaskRows, chat

VERIFIER = "example_lab.verifiers:yes_or_no"


def _row(split: str, index: int, number: int) -> Row:
    question = f"Is {number} even?"
    truth = "no" if number % 2 else "yes"
    return Row(
        task="parity",
        split=split,
        index=index,
        prompt=chat(f"{question} Answer yes or no."),
        question=question,
        answer=truth,
        ground_truth=truth,
        data_source="example_lab",
        verifier=VERIFIER,
    )


def load(params: Data) -> TaskRows:
    """The numbers from 0, the last ten of them held out for the test split."""
    splits = {"train": range(40), "test": range(40, 50)}
    return TaskRows(
        splits={split: [_row(split, i, n) for i, n in enumerate(numbers)] for split, numbers in splits.items()},
        source="example_lab",
        origin="generator",
        revision=None,
        files={},
        expected={split: len(numbers) for split, numbers in splits.items()},
        read={split: len(numbers) for split, numbers in splits.items()},
    )


parity = Task(name="parity", load=load, verifier=VERIFIER)
