"""Checks while a policy is trained: what would otherwise go wrong in silence ends the run in a sentence."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from dagrpo.errors import UserError
from dagrpo.rollout.trajectory import Trajectory

# Mean distance in nats per token that is not taken for rounding. With equal weights, SGLang on a CPU in float32 is 4e-8
# away. The limit for bfloat16 is an estimate, wide on purpose: it is to catch another model, not to judge an engine.
LARGEST_MEAN_DIFFERENCE = {"float32": 0.02, "bfloat16": 0.25}
FIRST_STEPS = 5  # a policy that has not called a tool in so many steps will not find out by itself
LONGEST_FAULT = 200  # characters that are shown


def require_finite_gradient(norm: float) -> None:
    """UserError when a gradient's norm is infinite or not a number: the optimizer must not see it."""
    if not math.isfinite(norm):
        raise UserError(
            f"the gradient's norm is {norm}: lower the learning rate, or look at the rewards and logprobs of this step"
        )


def logprob_differences(rollout_logprobs: Sequence[float], trainer_logprobs: Tensor) -> dict[str, float]:
    """How far the engine's logprobs are from the trainer's, both [trained tokens]: mean and largest, in nats."""
    difference = np.abs(np.asarray(rollout_logprobs) - trainer_logprobs.double().cpu().numpy())
    return {"logprob_difference_mean": float(difference.mean()), "logprob_difference_max": float(difference.max())}


def require_the_policys_rollouts(
    rollout_logprobs: Sequence[float], trainer_logprobs: Tensor, dtype: str, step: int
) -> None:
    """UserError when the engine's logprobs are not those of the policy: it sampled with other weights.

    Both [trained tokens], of the policy that sampled: not a limit on how far an update may move it. `dtype` is the type
    that the engine computes in; the step counts from 1.
    """
    limit = LARGEST_MEAN_DIFFERENCE[dtype]
    difference = logprob_differences(rollout_logprobs, trainer_logprobs)["logprob_difference_mean"]
    if not difference <= limit:  # so that what is not a number is refused
        raise UserError(
            f"step {step}: the engine's logprobs are {difference:.3g} nats per token away from the trainer's, where "
            f"{dtype} explains at most {limit:g}: the engine samples from other weights, or computes this model "
            "otherwise. Give the run a server of its own (runtime.engine.servers), or set rollout.dtype to float32."
        )


def require_usable(trajectories: Sequence[Trajectory], max_excluded: float, step: int) -> None:
    """UserError when a step's trajectories show a fault, or leave nothing to learn from. The step counts from 1.

    `max_excluded` is the share of them that may be excluded.
    """
    _require_no_dropped_calls(trajectories, step)
    excluded = [trajectory.fault for trajectory in trajectories if trajectory.excluded]
    if len(excluded) > max_excluded * len(trajectories):
        raise UserError(
            f"step {step}: {len(excluded)} of {len(trajectories)} trajectories were excluded, because something broke that the "
            f"policy has no part in, and rollout.agent.max_excluded allows {max_excluded:.0%}: {_first_faults(excluded)}. Repair "
            "that and run again: it goes on from the last saved step."
        )
    failed = [trajectory.fault for trajectory in trajectories if trajectory.stop_reason == "program_failed"]
    if len(failed) == len(trajectories):
        raise UserError(
            f"step {step}: the agent's program failed in every one of {len(failed)} attempts: {_first_faults(failed)}. Correct "
            "the program, or rollout.agent, and run again."
        )
    if not any(trajectory.learned for trajectory in trajectories):
        reasons = ", ".join(sorted({trajectory.stop_reason for trajectory in trajectories}))
        raise UserError(
            f"step {step}: there is nothing to learn from, since no trajectory that may be learned from has a turn (they stopped "
            f"for: {reasons}): raise rollout.agent.max_tokens above the length of the prompts, or repair what was excluded."
        )


def _require_no_dropped_calls(trajectories: Sequence[Trajectory], step: int) -> None:
    for trajectory in trajectories:
        if trajectory.dropped_calls:
            raise UserError(
                f"step {step}: the chat format lost {trajectory.dropped_calls} tool calls in an attempt at row "
                f"{trajectory.problem.index} of the train split, which is a fault of the format and not of the policy: choose "
                "another rollout.chat, or report it with this row."
            )


def _first_faults(faults: Sequence[str]) -> str:
    """The most frequent ones, each cut to a line."""
    counted = Counter(" ".join(fault.split())[:LONGEST_FAULT] or "no fault is named" for fault in faults)
    return "; ".join(f"{fault!r} ({number} times)" for fault, number in counted.most_common(3))


def require_calls(called: Iterable[float], functions: Sequence[str], step: int) -> None:
    """UserError when tools are offered, and after FIRST_STEPS steps no trajectory has ever called one, well or not.

    `called`: of each step up to this one, which counts from 1, the share of its trajectories that called a tool.
    """
    if not functions or step < FIRST_STEPS or any(called):
        return
    raise UserError(
        f"step {step}: the task offers tools ({', '.join(functions)}), and no trajectory of any step has called one, so that "
        "nothing about them can be learned: fine-tune on demonstrations that call first (sft.steps), choose the rollout.chat "
        "in which this model writes calls, or have the prompt mention the tools. To go on without calls, set "
        "rollout.agent.require_calls to false."
    )


@contextmanager
def advice_on_memory(key: str, value: int) -> Iterator[None]:
    """Turn running out of the device's memory into a UserError that names the parameter to lower, and its value."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = (
            f"lower {key} (it is {value}), and run again: it goes on from the last saved step"
            if value > 1
            else "use a device with more memory, more processes (runtime.training.processes), or shorter sequences"
        )
        raise UserError(f"the device ran out of memory: {remedy}.") from error
