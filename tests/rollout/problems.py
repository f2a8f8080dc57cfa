"""Problems that are made up."""

from typing import Any

from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Row


def task_row(question: str = "1+2=?", **changes: Any) -> Row:
    values: dict[str, Any] = {
        "task": "arithmetic",
        "split": "train",
        "index": 0,
        "prompt": ({"role": "user", "content": question},),
        "question": question,
        "answer": "1+2\n#### 3",
        "ground_truth": "3",
        "data_source": "test",
    }
    return Row(**(values | changes))


def problem(index: int = 0, **changes: Any) -> Prompt:
    """Its prompt is two tokens, the last of which is 10 + index."""
    return Prompt(index=index, row=task_row(**changes), text=f"p{index}", token_ids=(5, 10 + index))


# The columns of a rollout that had a single turn, in the tables that tests write by hand.
SINGLE_TURN: dict[str, Any] = {
    "turns": 1,
    "stop_reason": "answered",
    "fault": "",
    "messages": "[]",
    "calls": [],
    "samples": [],
    "reported": [],
}
