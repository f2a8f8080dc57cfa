"""Whether the recorded steps are of the prompts that an uninterrupted run takes: no resume skips or repeats any.

Which prompts are drawn next follows from the run's seed, how many were drawn before, and which of those are retired
(trainer/drawing.py). What was really sampled stands in the records, what was thrown away too; both are compared when a run
goes on, and when it ends. How many prompts a step should have drawn is not here, where dynamic sampling may draw more.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagrpo.errors import UserError
from dagrpo.files import naming_parquet
from dagrpo.params.training import Training
from dagrpo.records import EXCLUDED
from dagrpo.trainer.drawing import Drawing

PROMPT = "problem_index"
OUTCOME = ["correct", "stop_reason", "completion_ids"]  # of an attempt, which may retire its prompt


def require_prompts(
    rollouts: Callable[[int], Path],
    steps: int,
    drawing: Drawing,
    training: Training,
    cut_off: Callable[[int], int] = lambda step: 0,
) -> None:
    """Check the first `steps` records; `rollouts` is the file of the step numbered from 1. UserError names a wrong step.

    `drawing` is that of a run which has not begun; `cut_off` says of each step how many more groups it has drawn and put back.
    """
    for step in range(1, steps + 1):
        path = rollouts(step)
        with naming_parquet(path, "delete the run's state and train again"):
            table = pq.read_table(path, columns=[PROMPT, *(OUTCOME if training.retire_at is not None else [])])
        recorded = table[PROMPT].to_pylist()
        planned = _planned(recorded, drawing, training, step, cut_off(step))
        if training.retire_at is not None:
            drawing.retire_rows(recorded, _right(table))
        if recorded != planned:
            raise UserError(
                f"{path} is of {len(recorded)} attempts at rows {_some(recorded)} of the train split, where the seed and the "
                f"steps before say {len(planned)} at rows {_some(planned)}: the run has skipped or repeated prompts. Delete its state "
                f"({path.parent.parent}) and train again, or set training.gates.consumed_prompts to false."
            )


def _planned(recorded: Sequence[int], drawing: Drawing, training: Training, step: int, cut_off: int) -> list[int]:
    """The row of the train split of each attempt of a step, from 1, that has recorded these.

    Which of the drawn groups were cut off, so many, only the record knows: those that are not in it. They are put back.
    """
    size, prompts = training.samples_per_prompt, training.prompts_per_step
    if training.dynamic_sampling.is_on:
        prompts = max(prompts, len(recorded) // size)
    drawn = drawing.draw(prompts + cut_off, step - 1)
    rows = [prompt.problem.index for prompt in drawn]
    if cut_off and len(drawing.put_back(drawn, recorded[::size])) == cut_off:
        rows = [*recorded[::size]]
    return [row for row in rows for _ in range(size)]


def _right(table: pa.Table) -> list[bool | None]:
    """Whether each attempt was right; None: nothing could be learned from it."""
    written = pc.greater(pc.list_value_length(table["completion_ids"]), 0)
    learned = pc.and_(written, pc.not_equal(table["stop_reason"], EXCLUDED)).to_pylist()
    return [
        right is True if known else None for right, known in zip(table["correct"].to_pylist(), learned, strict=True)
    ]


def _some(rows: Sequence[int]) -> str:
    distinct = list(dict.fromkeys(rows))
    return ", ".join(map(str, distinct[:5])) + (", ..." if len(distinct) > 5 else "")
