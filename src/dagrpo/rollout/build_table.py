"""Tables of rollouts, built column by column from trajectories."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagrpo.core.trajectory import GradedTrajectory, TokenSample, Trajectory
from dagrpo.core.types import ToolCall
from dagrpo.rollout.table import ALL, DIFFERENCE_BITS, ROLLOUTS, TRAINING_ROLLOUTS
from dagrpo.utils.files import canonical_json

MANTISSA_BITS = 23  # of a float32, beside the one before the point
Floats = NDArray[np.float32]
Columns = Mapping[str, Sequence[Any]]


def rollout_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Return one row per trajectory, in order; columns as in ROLLOUTS."""
    return _table(_columns(trajectories), ROLLOUTS)


def training_table(
    step: int,
    graded: Sequence[GradedTrajectory],
    *,
    rewards: Sequence[float],
    advantages: Sequence[float],
    token_advantages: Sequence[Sequence[float] | Floats],
    trainer_logprobs: Sequence[Sequence[float] | Floats],
    greedy_rewards: Sequence[float | None] | None = None,
    teacher_logprobs: Sequence[Sequence[float] | Floats] | None = None,
) -> pa.Table:
    """Return one row per trajectory of the step numbered from 1; columns as in TRAINING_ROLLOUTS.

    rewards, advantages and greedy_rewards: [trajectories]; trainer_logprobs and teacher_logprobs: [trajectories][tokens that
    the policy wrote], and so token_advantages, but empty where they are all the same.
    """
    columns = _training_columns(step, graded)
    columns |= {
        "reward": rewards,
        "logprob_differences": list(map(_difference, columns["rollout_logprobs"], trainer_logprobs)),
        "advantage": advantages,
        "token_advantages": token_advantages,
    }
    columns |= {} if greedy_rewards is None else {"greedy_reward": greedy_rewards}
    columns |= {} if teacher_logprobs is None else {"teacher_logprobs": teacher_logprobs}
    return _table(columns, TRAINING_ROLLOUTS)


def discarded_table(step: int, graded: Sequence[GradedTrajectory]) -> pa.Table:
    """Return a table like `training_table`, of trajectories that the step, from 1, has sampled and discarded."""
    return _table(_training_columns(step, graded) | {"discarded": [True] * len(graded)}, TRAINING_ROLLOUTS)


def rounded(values: Floats, bits: int) -> Floats:
    """Return values rounded to a number of significant bits, which compress well: a relative error of at most 2^-bits."""
    dropped = MANTISSA_BITS + 1 - bits
    half, mask = np.uint32(1 << (dropped - 1)), np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    nearest: Floats = ((values.view(np.uint32) + half) & mask).view(np.float32)
    return np.where(np.isfinite(values), nearest, values)


def _difference(engine: Floats, trainer: Sequence[float] | Floats) -> Floats:
    """Return the trainer's logprobs minus the engine's, rounded. [tokens], or [0] if the trajectory was left out of the update."""
    own = np.asarray(trainer, dtype=np.float32)
    return rounded(own - engine, DIFFERENCE_BITS) if len(own) else own


def _table(columns: Columns, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([pa.array(columns[each.name], each.type) for each in schema], schema=schema)


def _training_columns(step: int, graded: Sequence[GradedTrajectory]) -> dict[str, Sequence[Any]]:
    """Return the columns of TRAINING_ROLLOUTS for trajectories that were not trained on."""
    trajectories, scores, count = [each.trajectory for each in graded], [each.score for each in graded], len(graded)
    return {
        **_columns(trajectories),
        "step": [step] * count,
        "logprob_differences": [()] * count,
        "teacher_logprobs": [()] * count,
        "sampling_support": [[ids for sample in each.samples for ids in sample.support] for each in trajectories],
        "extracted": [each.extracted for each in scores],
        "verdict": [each.verdict for each in scores],
        "correct": [each.correct for each in scores],
        "components": [sorted(each.components.items()) for each in scores],
        "reward": [each.reward for each in scores],
        "advantage": [0.0] * count,
        "token_advantages": [()] * count,
        "greedy_reward": [None] * count,
        "discarded": [False] * count,
        "earlier_versions": [[run for sample in each.samples for run in sample.earlier] for each in trajectories],
        "completion_tokens": [each.tokens for each in trajectories],
        "kept": [ALL] * count,
    }


def _columns(trajectories: Sequence[Trajectory]) -> dict[str, Sequence[Any]]:
    """Return the columns of ROLLOUTS, without seconds and cached tokens, which differ in the next run."""
    prompts = [each.prompt for each in trajectories]
    return {
        "task": [each.row.task for each in prompts],
        "problem_index": [each.index for each in prompts],
        "sample_index": [each.sample_index for each in trajectories],
        "prompt": [each.text for each in prompts],
        "completion": [_storable(each.text) for each in trajectories],
        "prompt_ids": [np.array(each.token_ids, np.int32) for each in prompts],
        "completion_ids": [
            np.concatenate([np.array(each.completion_ids, np.int32) for each in samples] or [np.empty(0, np.int32)])
            for samples in (each.samples for each in trajectories)
        ],
        "rollout_logprobs": [
            np.concatenate([np.array(each.completion_logprobs, np.float32) for each in samples] or [np.empty(0, "f4")])
            for samples in (each.samples for each in trajectories)
        ],
        "weight_version": [each.samples[-1].weight_version if each.samples else "" for each in trajectories],
        "finish_reason": [each.finish_reason for each in trajectories],
        "ground_truth": [each.row.ground_truth for each in prompts],
        "verifier": [each.row.verifier for each in prompts],
        "question": [each.row.question for each in prompts],
        "sampling_seed": [each.sampling_seed for each in trajectories],
        "turns": [each.turns for each in trajectories],
        "stop_reason": [each.stop_reason for each in trajectories],
        "fault": [_storable(each.fault) for each in trajectories],
        "messages": [_messages(each) for each in trajectories],
        "calls": [[_call(call) for call in each.calls] for each in trajectories],
        "samples": [
            [] if _is_one_completion(each) else [_sample(sample) for sample in each.samples] for each in trajectories
        ],
        "reported": [
            sorted((_storable(name), value) for name, value in each.reported.items()) for each in trajectories
        ],
    }


def _messages(trajectory: Trajectory) -> str:
    """Return the messages as JSON; [] if there is one, and the column `completion` has it all."""
    if trajectory.messages == ({"role": "assistant", "content": trajectory.text},):
        return "[]"
    return _storable(canonical_json(trajectory.messages))


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "turn": call.turn,
        "name": _storable(call.name),
        "arguments": _storable(call.arguments),
        "status": call.status,
        "result": _storable(call.result),
    }


def _sample(sample: TokenSample) -> dict[str, Any]:
    return {"token_ids": np.array(sample.token_ids, np.int32), "loss_mask": np.array([*sample.loss_mask], np.bool_)}


def _is_one_completion(trajectory: Trajectory) -> bool:
    """Return True if the attempt is one prompt and one completion, so that the samples add nothing."""
    prompt, samples = trajectory.prompt.token_ids, trajectory.samples
    whole = [slice(len(prompt), len(prompt) + trajectory.tokens)]
    return not samples or (
        len(samples) == 1
        and [*samples[0].written] == whole
        and len(samples[0].token_ids) == whole[0].stop
        and tuple(samples[0].token_ids[: len(prompt)]) == prompt
    )


def _storable(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair: JSON can spell one, no file in UTF-8 can hold it."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
