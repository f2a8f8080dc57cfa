"""Check that a resumed run skips or repeats no prompts.

Which prompts come next follows from the run's seed, the number sampled before, and the retired ones among them
(trainer/sampling/prompt_sampler.py). The records hold the prompts that were really sampled, including discarded ones; both are compared
when a run resumes and when it ends. The number of prompts of a step is taken from its record, as dynamic sampling may add more.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagrpo.core.errors import UserError
from dagrpo.core.types import EXCLUDED
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.utils.tables import naming_parquet

OUTCOME = ["correct", "stop_reason", "completion_tokens"]  # of an attempt, which may retire its prompt


def require_prompts(
    rollouts: Callable[[int], Path],
    prompts: Callable[[int], list[int]],
    steps: int,
    sampler: PromptSampler,
    training: Training,
    cut_off: Callable[[int], int] = lambda step: 0,
) -> None:
    """Check the first `steps` records. Raises UserError, which names a wrong step.

    `rollouts` returns the file of a step (1-based), which is read only where its outcomes retire prompts, and `prompts` its attempts' rows.
    `sampler` is the one of a new run; `cut_off` returns how many additional groups a step has sampled and put back.
    """
    for step in range(1, steps + 1):
        path, recorded = rollouts(step), prompts(step)
        planned = _planned(recorded, sampler, training, step, cut_off(step))
        if training.retire_at is not None:
            with naming_parquet(path, "delete the run's state and train again"):
                sampler.retire_rows(recorded, _right(pq.read_table(path, columns=OUTCOME)))
        if recorded != planned:
            raise UserError(
                f"{path} is of {len(recorded)} attempts at rows {_some(recorded)} of the train split, where the seed and the "
                f"steps before say {len(planned)} at rows {_some(planned)}: the run has skipped or repeated prompts. Delete its state "
                f"({path.parent.parent}) and train again, or set training.gates.consumed_prompts to false."
            )


def _planned(recorded: Sequence[int], sampler: PromptSampler, training: Training, step: int, cut_off: int) -> list[int]:
    """Return the expected train split row of each recorded attempt of `step` (1-based).

    The record alone shows which of the sampled groups were cut off: the `cut_off` ones that it lacks. They are put back.
    """
    size, prompts = training.samples_per_prompt, training.prompts_per_step
    if training.dynamic_sampling.is_on:
        prompts = max(prompts, len(recorded) // size)
    sampled = sampler.draw(prompts + cut_off, step - 1)
    rows = [prompt.prompt.index for prompt in sampled]
    if cut_off and len(sampler.put_back(sampled, recorded[::size])) == cut_off:
        rows = [*recorded[::size]]
    return [row for row in rows for _ in range(size)]


def _right(table: pa.Table) -> list[bool | None]:
    """Return the correctness of each attempt; None if nothing could be learned from it."""
    written = pc.greater(table["completion_tokens"], 0)
    learned = pc.and_(written, pc.not_equal(table["stop_reason"], EXCLUDED)).to_pylist()
    return [
        right is True if known else None for right, known in zip(table["correct"].to_pylist(), learned, strict=True)
    ]


def _some(rows: Sequence[int]) -> str:
    distinct = list(dict.fromkeys(rows))
    return ", ".join(map(str, distinct[:5])) + (", ..." if len(distinct) > 5 else "")
