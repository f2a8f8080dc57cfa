"""held_out.parquet: answers to held-out problems during training, and their accuracies.

No checkpoint is selected by them: one that is chosen by its held-out answers scores better on those problems than on
others. held_out_prompts.py selects the problems.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagrpo.evaluation.outcomes import SCORES
from dagrpo.rollout.table import required

GROUP = "held_out"
OF_SCORES = ("task", "problem_index", "extracted", "verdict", "correct", "truncated", "completion_tokens")
HELD_OUT = pa.schema(
    [
        required("step", pa.int32()),  # that was finished last; 0: the policy that training starts from
        required("split", pa.string()),  # validation or test
        required("oracle", pa.bool_()),  # a tool or the simulated user knew the answers
        *(SCORES.field(name) for name in OF_SCORES),
    ]
)
TableRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The greedy accuracy on one task after one step."""

    step: int
    task: str
    split: str
    oracle: bool
    right: int
    problems: int

    @property
    def accuracy(self) -> float:
        return self.right / self.problems

    @property
    def figure(self) -> str:
        """The recorded name, such as held_out/gsm8k/greedy."""
        return f"{GROUP}/{self.task}_oracle/greedy" if self.oracle else f"{GROUP}/{self.task}/greedy"


def points(rows: Sequence[TableRow]) -> Iterator[Point]:
    """Yield a point for each step and task among the rows of HELD_OUT, in their order."""
    groups: dict[tuple[int, str], list[TableRow]] = {}
    for row in rows:
        groups.setdefault((row["step"], row["task"]), []).append(row)
    for (step, task), own in groups.items():
        right = sum(row["correct"] for row in own)
        yield Point(
            step=step, task=task, split=own[0]["split"], oracle=own[0]["oracle"], right=right, problems=len(own)
        )


def figures(rows: Sequence[TableRow]) -> dict[int, dict[str, float]]:
    """Return the accuracies among the rows of HELD_OUT under their recorded names, by step."""
    by_step: dict[int, dict[str, float]] = {}
    for point in points(rows):
        by_step.setdefault(point.step, {})[point.figure] = point.accuracy
    return by_step
