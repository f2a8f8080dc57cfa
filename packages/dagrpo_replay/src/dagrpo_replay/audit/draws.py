"""Draws of a step, derived from seed, step and earlier outcomes."""

import itertools
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from dagrpo.core.types import EXCLUDED
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler, SampledPrompt
from dagrpo_replay.audit.checks import row_name

SHORT = ("problem_index", "sample_index", "sampling_seed", "question", "ground_truth")


def faults_of_draw(run: TrainingRun, step: int, table: pa.Table, sampler: PromptSampler) -> list[str]:
    """Return how the attempts of a step differ from those that the sampler draws next."""
    size, wanted = run.training.samples_per_prompt, run.training.prompts_per_step
    tasks, groups, due = table["task"].to_pylist(), table.num_rows // size, sampler.due(step - 1)
    used = Counter(task for task, is_out in zip(tasks, table["discarded"].to_pylist(), strict=True) if not is_out)
    faults, draws_more = [], run.training.dynamic_sampling.is_on
    as_due = used == {task: count * size for task, count in due.items() if count}
    if table.num_rows % size or not as_due or (groups != wanted and not draws_more):
        of_tasks = ", ".join(
            f"{used[task] / size:g} groups of {task} where {count} are due" for task, count in due.items()
        )
        faults.append(
            f"step {step}: {used.total()} of {table.num_rows} attempts are learned from, and {wanted} groups of {size} are due"
            + f" ({of_tasks})" * (len(due) > 1)
        )
    drawn = _drawn(sampler, step, tasks[::size] if draws_more else [])
    seeds = _seeds(run.seed, step, len(drawn), size)
    rows = [(each.prompt, sample) for each in drawn for sample in range(size)]
    if set(table["step"].to_pylist()) != {step}:
        faults.append(f"step {step}: its table is of step {table['step'][0].as_py()}")
    for place, row in enumerate(table.select(SHORT).to_pylist()[: len(rows)]):
        prompt, sample = rows[place]
        as_drawn = (prompt.index, sample, seeds[place], prompt.row.question, prompt.row.ground_truth)
        for name, value in zip(SHORT, as_drawn, strict=True):
            if row[name] != value:
                faults.append(f"step {step}, {row_name(place, row)}: {name} is {row[name]!r}, and {value!r} is due")
                break
        else:
            continue
        if row["sampling_seed"] == _seeds(run.seed, step + 1, len(drawn), size)[place]:
            faults.append(f"step {step} has the seeds of step {step + 1}: a step was left out")
        break
    return faults


def _drawn(sampler: PromptSampler, step: int, tasks: Sequence[str]) -> list[SampledPrompt]:
    """Return the prompts that are due in a step, and as many more as dynamic sampling has drawn, in the order of the table's `tasks`."""
    due = sampler.due(step - 1)
    drawn = sampler.draw({task: max(count, tasks.count(task)) for task, count in due.items()}, step - 1)
    if not tasks:
        return drawn
    left = {task: [each for each in drawn if each.prompt.row.task == task] for task in due}
    in_order = [left[task].pop(0) for task in tasks if task in left]
    return [*in_order, *itertools.chain.from_iterable(left.values())]


def retired_by(table: pa.Table, training: Training) -> list[int]:
    """Return the problems that a step retires, by the outcomes in its table (training.retire_at)."""
    if (rate := training.retire_at) is None:
        return []
    rows, size = table.to_pylist(), training.samples_per_prompt
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    learned = [[r for r in own if r["stop_reason"] != EXCLUDED and r["completion_tokens"] > 0] for own in groups]
    shares = [(own, sum(r["correct"] is True for r in own) / len(own)) for own in learned if own]
    return [own[0]["problem_index"] for own, share in shares if share >= rate]


def _seeds(seed: int, step: int, groups: int, size: int) -> list[int]:
    return [sampling_seed(seed, "rollout", step - 1, g, sample) for g in range(groups) for sample in range(size)]
