"""Check of a step's trajectories before anything is learned from them.

They are usable, the samples of a prompt are independent, and tools are called. A group learns from the differences between its
samples: if they are all the same it learns nothing, and no other check notices.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.rollout.sampling import Sampling
from dagrpo.trainer.config.training import Training

FIRST_STEPS = 5  # a policy that has called no tool by then will not discover them by itself
LONGEST_FAULT = 200  # characters that are shown


class Outcome(Protocol):
    """End of an attempt: a Trajectory, or what a log has of it."""

    @property
    def excluded(self) -> bool: ...
    @property
    def learned(self) -> bool: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def fault(self) -> str: ...


def require_usable(trajectories: Sequence[Trajectory], max_excluded: float, step: int) -> None:
    """Raise UserError if a step's trajectories show a fault, or leave nothing to learn from. The step counts from 1.

    `max_excluded` is the share of them that may be excluded.
    """
    require_no_dropped_calls(trajectories, step)
    require_learnable(trajectories, max_excluded, step)


def require_learnable(trajectories: Sequence[Outcome], max_excluded: float, step: int) -> None:
    """Raise UserError as require_usable does, but for calls that the chat format lost."""
    excluded = [trajectory.fault for trajectory in trajectories if trajectory.excluded]
    if len(excluded) > max_excluded * len(trajectories):
        raise UserError(
            f"step {step}: {len(excluded)} of {len(trajectories)} trajectories were excluded, because something broke that the "
            f"policy has no part in, and rollout.agent.max_excluded allows {max_excluded:.0%}: {_first_faults(excluded)}. Repair "
            "that and run again: it resumes from the last saved step."
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


def require_no_dropped_calls(trajectories: Sequence[Trajectory], step: int) -> None:
    """Raise UserError for calls that the chat format lost in a step."""
    for trajectory in trajectories:
        if trajectory.dropped_calls:
            raise UserError(
                f"step {step}: the chat format lost {trajectory.dropped_calls} tool calls in an attempt at problem "
                f"{trajectory.prompt.index} of task {trajectory.prompt.row.task}, which is a fault of the format and not of the policy: "
                "choose another rollout.chat, or report it with this problem."
            )


def _first_faults(faults: Sequence[str]) -> str:
    """Return the most frequent faults, each cut to a line."""
    counted = Counter(" ".join(fault.split())[:LONGEST_FAULT] or "no fault is named" for fault in faults)
    return "; ".join(f"{fault!r} ({number} times)" for fault, number in counted.most_common(3))


def require_calls(called: Iterable[float], functions: Sequence[str], step: int, task: str = "") -> None:
    """Raise UserError if tools are offered, and in FIRST_STEPS steps no trajectory has called one, successfully or not.

    `called`: the share of its trajectories that called a tool, of each step up to this one (1-based); of a `task` of a mixture, of those
    steps that have prompts of it. It is read up to the first share above 0.
    """
    without = 0
    for share in called if functions else ():
        if share:
            return
        without += 1
    if without < FIRST_STEPS:
        return
    raise UserError(
        f"step {step}: the task{f' {task}' if task else ''} offers tools ({', '.join(functions)}), and no trajectory of any step "
        "has called one, so that "
        "nothing about them can be learned: fine-tune on demonstrations that call first (sft.steps), choose the rollout.chat "
        "in which this model writes calls, or have the prompt mention the tools. To go on without calls, set "
        "rollout.agent.require_calls to false."
    )


def require_independent(trajectories: Sequence[Trajectory], sampling: Sampling, training: Training, step: int) -> None:
    """Check completions as section training asks; trajectories: [prompts * samples_per_prompt], step from 1."""
    coincidence = training.gates.coincidence / (training.steps * training.prompts_per_step)
    require_no_impossible_group(trajectories, training.samples_per_prompt, sampling, coincidence, step)


def require_no_impossible_group(
    trajectories: Sequence[Trajectory], group_size: int, sampling: Sampling, coincidence: float, step: int
) -> None:
    """Raise UserError if a group's completions are identical although that is less probable than `coincidence`.

    Given one completion of probability p, the other n - 1 are identical to it with p ** (n - 1), if the engine samples each from
    its whole distribution. Where rollout.top_p or top_k truncate that and the logprobs are not renormalised, nothing is
    checked: p is not known.
    """
    if coincidence == 0 or ((sampling.top_p < 1 or sampling.top_k != -1) and not sampling.support):
        return
    for group in _groups(trajectories, group_size):
        learned = [each for each in group if each.learned]
        written = {tuple(sample.completion_ids.tobytes() for sample in each.samples) for each in learned}
        if len(written) != 1 or len(learned) < 2:
            continue
        logprob = (len(learned) - 1) * sum(math.fsum(s.completion_logprobs) for s in learned[0].samples)
        if logprob < math.log(coincidence):
            raise UserError(
                f"step {step}: all {len(learned)} samples at problem {learned[0].prompt.index} of task "
                f"{learned[0].prompt.row.task} are the same "
                f"{learned[0].tokens} tokens, which chance makes once in 10^{-logprob / math.log(10):.0f} times "
                f"(training.gates.coincidence): the engine does not sample each by itself. Look at its "
                "seeds (sampling_seed needs --enable-deterministic-inference) and at what caches completions."
            )


def _groups(trajectories: Sequence[Trajectory], size: int) -> Iterator[Sequence[Trajectory]]:
    for start in range(0, len(trajectories), size):
        yield trajectories[start : start + size]
