"""Metrics of turns, tools and simulated users.

They are in the groups `rollout/` and `tool/`; runs without tools and without a simulated user do not have them. step.py
computes the metrics of every run.
"""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import numpy as np

from dagrpo.core.trajectory import Trajectory
from dagrpo.core.types import CallStatus, StopReason, ToolCall
from dagrpo.trainer.batches.rollouts import Rollouts

CALLED = "tool/called_fraction"  # of the trajectories


def turn_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Return reproducible metrics; {} if every trajectory has one turn and calls no tool.

    Means are over the trajectories that are learned from, and reasons to stop are of all.
    """
    if not rollouts.several_turns:
        return {}
    trajectories = [each.trajectory for each in rollouts.graded]
    learned = [trajectory for trajectory in trajectories if trajectory.learned]
    return {**_of_turns(trajectories, learned), **_of_calls(learned, rollouts.functions)}


def turn_timings(rollouts: Rollouts) -> dict[str, float]:
    """Return timings, which depend on the machine and are no part of a result."""
    if not rollouts.several_turns:
        return {}
    trajectories = [each.trajectory for each in rollouts.graded]
    seconds = [call.seconds for trajectory in trajectories for call in trajectory.calls]
    prompts = sum(trajectory.prompt_tokens for trajectory in trajectories)
    return {
        "rollout/cached_tokens_fraction": sum(t.cached_tokens for t in trajectories) / max(prompts, 1),
        "tool/seconds_mean": _mean(seconds),
        "tool/seconds_max": max(seconds, default=0.0),
    }


def _of_turns(trajectories: Sequence[Trajectory], learned: Sequence[Trajectory]) -> dict[str, float]:
    turns = [float(trajectory.turns) for trajectory in learned]
    lengths = [float(max(len(sample.token_ids) for sample in trajectory.samples)) for trajectory in learned]
    reasons = Counter(trajectory.stop_reason for trajectory in trajectories)
    return {
        "rollout/turns_mean": _mean(turns),
        "rollout/turns_max": max(turns, default=0.0),
        "rollout/samples_mean": _mean([float(len(trajectory.samples)) for trajectory in learned]),
        # of the longest sample, prompt and results included: what rollout.agent.max_tokens limits
        "rollout/tokens_mean": _mean(lengths),
        "rollout/tokens_max": max(lengths, default=0.0),
        "rollout/excluded": float(reasons["excluded"]),
        "rollout/left_out": float(len(trajectories) - len(learned)),
        **{f"rollout/stop_{name}_fraction": reasons[name] / len(trajectories) for name in get_args(StopReason)},
    }


def _of_calls(learned: Sequence[Trajectory], functions: Sequence[str]) -> dict[str, float]:
    calls: list[ToolCall] = [call for trajectory in learned for call in trajectory.calls]
    statuses, names = Counter(call.status for call in calls), Counter(call.name for call in calls)
    return {
        "tool/calls_mean": _mean([float(len(trajectory.calls)) for trajectory in learned]),
        CALLED: _mean([float(bool(trajectory.calls)) for trajectory in learned]),
        "tool/result_characters_mean": _mean([float(len(call.result)) for call in calls]),
        **{f"tool/{name}_fraction": statuses[name] / max(len(calls), 1) for name in get_args(CallStatus)},
        **{f"tool/calls_of_{name}": float(names[name]) for name in functions},
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
