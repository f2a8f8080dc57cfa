"""Whether the recorded steps are of the prompts that an uninterrupted run takes: no resume skips or repeats any.

The prompts of a step are a function of the run's seed and the step (rollout/prompts.py), so that nothing is saved for them.
What was really sampled stands in the records; both are compared when a run goes on, and when it ends.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from dagrpo.errors import UserError
from dagrpo.files import naming_parquet

PromptsOf = Callable[[int], Sequence[int]]  # the step, from 0 -> the row of the split of each of its attempts, in order


def require_prompts(rollouts: Callable[[int], Path], steps: int, expected: PromptsOf) -> None:
    """Check the first `steps` records; `rollouts` is the file of the step numbered from 1. UserError names a wrong step."""
    for step in range(1, steps + 1):
        path = rollouts(step)
        with naming_parquet(path, "delete the run's state and train again"):
            recorded = pq.read_table(path, columns=["problem_index"])["problem_index"].to_pylist()
        planned = list(expected(step - 1))
        if recorded != planned:
            raise UserError(
                f"{path} is of {len(recorded)} attempts at rows {_some(recorded)} of the train split, where seed and step say "
                f"{len(planned)} at rows {_some(planned)}: the run has skipped or repeated prompts. Delete its state "
                f"({path.parent.parent}) and train again, or set training.gates.consumed_prompts to false."
            )


def _some(rows: Sequence[int]) -> str:
    distinct = list(dict.fromkeys(rows))
    return ", ".join(map(str, distinct[:5])) + (", ..." if len(distinct) > 5 else "")
