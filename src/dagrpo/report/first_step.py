"""Comparison of the first training step with the base policy's evaluation.

The rollouts of step 1, including those that dynamic sampling discards, and the base evaluation have the same weights. If task,
prompt form, sampling and extractor agree, their shares of correct answers differ by chance alone: one is on training problems,
the other on held-out ones. The report checks it, because the stage train must not wait for an evaluation. The result is a
warning and not an error, because the problems differ and supervised fine-tuning may have seen the training problems.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.evaluation.statistics import Floats
from dagrpo.report.format import percent
from dagrpo.report.inputs import Inputs
from dagrpo.report.parameters import Parameter, value_of
from dagrpo.report.rollouts import step_rollouts, steps_of

DEVIATIONS = 3.89  # standard deviations: a normal difference of means exceeds them once in 10,000 times
LEAST = 0.05  # a smaller difference may come from the training problems, whatever its interval
SAME = (  # must have one recorded value each, the same in both
    ("rollout.temperature", "evaluation.sampling.temperature"),
    ("rollout.top_p", "evaluation.sampling.top_p"),
    ("rollout.top_k", "evaluation.sampling.top_k"),
    ("rollout.max_new_tokens", "evaluation.sampling.max_new_tokens"),
    ("reward.extractor", "evaluation.scoring.extractor"),
)
AS_THEY_COME = (
    ("training.order", '"shuffled"'),
    ("training.min_pass_rate", "0.0"),
    ("training.max_pass_rate", "1.0"),
    ("reward.verifier", '"task"'),
)


def doubts(inputs: Inputs, parameters: Mapping[str, Sequence[Parameter]]) -> list[str]:
    """Return a warning for each seed and task whose first step does not look like the base policy; [] if nothing is comparable."""
    pairs = [(value_of(parameters, ours), value_of(parameters, theirs)) for ours, theirs in SAME]
    pairs += [(value_of(parameters, key), value) for key, value in AS_THEY_COME]
    is_comparable = all(one is not None and one == other for one, other in pairs)
    if not is_comparable or not all(steps_of(inputs, seed) for seed in inputs.seeds):
        return []
    warnings = [
        _doubt(inputs, seed, task, step_rollouts(inputs, seed, 1).short)
        for seed in inputs.seeds
        for task in inputs.tasks
    ]
    return [sentence for sentence in warnings if sentence is not None]


def _doubt(inputs: Inputs, seed: int, task: str, rollouts: pa.Table) -> str | None:
    sampled = inputs.evaluations[task, "base", seed].outcomes.sampled
    own = rollouts.filter(pc.equal(rollouts["task"], task))
    trained_on, held_out = _per_problem(own), sampled.mean(axis=1) if sampled.shape[1] else np.zeros(0)
    if min(len(trained_on), len(held_out)) < 2:
        return None
    difference = float(trained_on.mean() - held_out.mean())
    room = max(DEVIATIONS * math.hypot(_error_of_mean(trained_on), _error_of_mean(held_out)), LEAST)
    if abs(difference) <= room:
        return None
    return (
        f"Seed {seed}: in step 1, before any update, {percent(float(trained_on.mean()))} of the answers on {task} were correct, but "
        f"{percent(float(held_out.mean()))} of those that the base policy sampled in its evaluation; chance explains a difference of "
        f"{percent(room)}. Either training did not sample from the base policy, or its problems are of another kind: compare "
        "prompts, completions and weight_version of the first rollouts with those of the evaluation."
    )


def _per_problem(rollouts: pa.Table) -> Floats:
    """Return the share of right answers of each problem, [problems]; an ungraded completion counts as wrong."""
    right: dict[int, list[float]] = {}
    correct = pc.fill_null(rollouts["correct"], False).to_pylist()
    for problem, value in zip(rollouts["problem_index"].to_pylist(), correct, strict=True):
        right.setdefault(problem, []).append(float(value))
    return np.array([np.mean(values) for values in right.values()], dtype=np.float64)


def _error_of_mean(values: Floats) -> float:
    """Return the standard error of the mean, at least that of a share in which half a problem differs."""
    return max(float(values.std(ddof=1)) / math.sqrt(len(values)), 0.5 / len(values))
