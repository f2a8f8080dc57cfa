"""Check that trajectories can be learned from and tools are called."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory

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
                f"step {step}: the chat format lost {trajectory.dropped_calls} tool calls in an attempt at row "
                f"{trajectory.prompt.index} of the train split, which is a fault of the format and not of the policy: choose "
                "another rollout.chat, or report it with this row."
            )


def _first_faults(faults: Sequence[str]) -> str:
    """Return the most frequent faults, each cut to a line."""
    counted = Counter(" ".join(fault.split())[:LONGEST_FAULT] or "no fault is named" for fault in faults)
    return "; ".join(f"{fault!r} ({number} times)" for fault, number in counted.most_common(3))


def require_calls(called: Iterable[float], functions: Sequence[str], step: int) -> None:
    """Raise UserError if tools are offered, and after FIRST_STEPS steps no trajectory has called one, successfully or not.

    `called`: for each step up to this one (1-based), the share of its trajectories that called a tool.
    """
    if not functions or step < FIRST_STEPS or any(called):
        return
    raise UserError(
        f"step {step}: the task offers tools ({', '.join(functions)}), and no trajectory of any step has called one, so that "
        "nothing about them can be learned: fine-tune on demonstrations that call first (sft.steps), choose the rollout.chat "
        "in which this model writes calls, or have the prompt mention the tools. To go on without calls, set "
        "rollout.agent.require_calls to false."
    )
