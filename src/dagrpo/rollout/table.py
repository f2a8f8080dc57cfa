"""Rollouts as a table: one Arrow schema for whoever asked for them; training adds what it knows beyond that."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagrpo.errors import UserError
from dagrpo.files import read_parquet
from dagrpo.rollout.trajectory import GradedTrajectory, Trajectory

AGAIN = "run the stage that makes it again"


def required(name: str, kind: pa.DataType) -> pa.Field:
    """A column without nulls."""
    return pa.field(name, kind, nullable=False)


_FIELDS = [
    required("task", pa.string()),
    required("problem_index", pa.int64()),  # the row of the split
    required("sample_index", pa.int32()),  # GREEDY, or 0, 1, ... for sampled ones
    required("prompt", pa.string()),  # as rendered by the chat template
    required("completion", pa.string()),
    required("prompt_ids", pa.list_(pa.int32())),
    required("completion_ids", pa.list_(pa.int32())),
    required("rollout_logprobs", pa.list_(pa.float32())),  # the engine's, of the completion's tokens
    required("weight_version", pa.string()),  # of the weights that sampled it
    required("finish_reason", pa.string()),  # "stop" or "length"
    required("ground_truth", pa.string()),
    required("verifier", pa.string()),
    required("question", pa.string()),
    required("sampling_seed", pa.int64()),
]
_ADDED_BY_TRAINING = [
    required("step", pa.int32()),  # from 1
    required("trainer_logprobs", pa.list_(pa.float32())),  # the trainer's own, before the update
    pa.field("extracted", pa.string()),  # null: no answer to read
    required("verdict", pa.string()),  # right, wrong, missing or unverifiable
    pa.field("correct", pa.bool_()),  # null: unverifiable
    required("components", pa.map_(pa.string(), pa.float32())),  # of the reward, unweighted
    required("reward", pa.float32()),  # what the policy learns from
    required("advantage", pa.float32()),
]
ROLLOUTS = pa.schema(_FIELDS)
TRAINING_ROLLOUTS = pa.schema([*_FIELDS, *_ADDED_BY_TRAINING])


def rollout_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """One row per trajectory, in order; columns as in ROLLOUTS."""
    return pa.Table.from_pylist([_row(trajectory) for trajectory in trajectories], schema=ROLLOUTS)


def training_table(
    step: int,
    graded: Sequence[GradedTrajectory],
    *,
    rewards: Sequence[float],
    advantages: Sequence[float],
    trainer_logprobs: Sequence[Sequence[float]],
) -> pa.Table:
    """One row per trajectory of the step numbered from 1; columns as in TRAINING_ROLLOUTS.

    rewards and advantages: [trajectories]; trainer_logprobs: [trajectories][completion].
    """
    rows = [
        _row(each.trajectory)
        | {
            "step": step,
            "trainer_logprobs": logprobs,
            "extracted": each.score.extracted,
            "verdict": each.score.verdict,
            "correct": each.score.correct,
            "components": sorted(each.score.components.items()),
            "reward": reward,
            "advantage": advantage,
        }
        for each, reward, advantage, logprobs in zip(graded, rewards, advantages, trainer_logprobs, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=TRAINING_ROLLOUTS)


def _row(trajectory: Trajectory) -> dict[str, Any]:
    problem, example = trajectory.problem, trajectory.problem.example
    (sample,) = trajectory.samples  # a single turn has one
    return {
        "task": example.task,
        "problem_index": problem.index,
        "sample_index": trajectory.sample_index,
        "prompt": problem.text,
        "completion": trajectory.text,
        "prompt_ids": problem.token_ids,
        "completion_ids": sample.completion_ids,
        "rollout_logprobs": sample.completion_logprobs,
        "weight_version": sample.weight_version,
        "finish_reason": trajectory.finish_reason,
        "ground_truth": example.ground_truth,
        "verifier": example.verifier,
        "question": example.question,
        "sampling_seed": trajectory.sampling_seed,
    }


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a table and check it against its schema; UserError names the file and the column or row that is wrong.

    Columns that the schema does not name are left out.
    """
    table = read_parquet(path)
    if table.num_rows == 0:
        raise UserError(f"{path} has no rows: {AGAIN}.")
    for field in schema:
        if field.name not in table.column_names:
            raise UserError(f"{path}: column `{field.name}` is missing: {AGAIN}.")
        column = table.column(field.name)
        if column.type != field.type:
            raise UserError(f"{path}: column `{field.name}` is {column.type}, not {field.type}: {AGAIN}.")
        if not field.nullable and column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise UserError(f"{path}: row {row}: `{field.name}` is null: {AGAIN}.")
    return table.select(schema.names)
