"""Metrics and rollout table of a step."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dagrpo.core.experiment import task_metric
from dagrpo.core.image_tokens import picture_lengths
from dagrpo.core.trajectory import Trajectory
from dagrpo.core.types import CallStatus, Score, StopReason, ToolCall
from dagrpo.rollout.build_table import Floats, discarded_table, training_table
from dagrpo.trainer.batches.rollouts import Flags, Rollouts
from dagrpo.trainer.metrics.off_policy import off_policy_metrics
from dagrpo.trainer.sampling.teacher import teacher_metrics
from dagrpo.trainer.update.stats import OVERFLOWED, UpdateStats


def rollout_rows(rollouts: Rollouts, trainer_logprobs: Tensor) -> pa.Table:
    """Return the table of a step's rollouts: prompt by prompt in sampling order, including the discarded ones.

    trainer_logprobs: [tokens], of the policy before the update.
    """
    assert rollouts.advantages is not None
    advantages = _parts(rollouts.advantages, rollouts)
    table = training_table(
        rollouts.step + 1,
        rollouts.graded,
        rewards=rollouts.rewards.tolist(),
        advantages=rollouts.trajectory_advantages,
        token_advantages=[values if (values != values[:1]).any() else [] for values in advantages],
        trainer_logprobs=_parts(trainer_logprobs, rollouts),
        teacher_logprobs=None if rollouts.teacher_logprobs is None else _parts(rollouts.teacher_logprobs, rollouts),
        greedy_rewards=_greedy_rewards(rollouts),
    )
    if rollouts.discarded:
        table = pa.concat_tables([table, discarded_table(rollouts.step + 1, rollouts.discarded)])
    elif not rollouts.order:
        return table
    used = np.array(rollouts.used)
    in_batch = np.flatnonzero(used)
    groups = np.concatenate([in_batch[[*rollouts.order]] if rollouts.order else in_batch, np.flatnonzero(~used)])
    return table.take(np.argsort(groups.repeat(rollouts.group_size), kind="stable"))


def step_metrics(rollouts: Rollouts, stats: UpdateStats) -> dict[str, float]:
    """Return a row of metrics.parquet without its step: the figures that belong to a step's result. Timings do not.

    Rewards, answers and lengths are of the trajectories that are learned from.
    """
    learned = rollouts.learned
    rewards = rollouts.rewards[learned].numpy().astype(np.float64)
    advantages = np.array(rollouts.trajectory_advantages)[learned]
    trajectories = [rollouts.graded[place].trajectory for place in learned]
    scores = [rollouts.graded[place].score for place in learned]
    lengths = np.array([trajectory.tokens for trajectory in trajectories], dtype=np.float64)
    rollout_logprobs, greedy = rollouts.logprobs, rollouts.greedy_rewards
    own = {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        **({} if greedy is None else {"reward/greedy_mean": float(np.nanmean(greedy.double().numpy()))}),
        "reward/accuracy": float(np.mean([score.correct is True for score in scores])),
        "reward/missing_answer_fraction": float(np.mean([score.verdict == "missing" for score in scores])),
        "reward/unverifiable_fraction": float(np.mean([score.verdict == "unverifiable" for score in scores])),
        **_reward_components(scores),
        **({} if rollouts.staleness is None else {"rollout/staleness": float(rollouts.staleness)}),
        **_ages(rollouts),
        "rollout/groups_without_spread": float(np.mean(~rollouts.spread)),
        "rollout/groups_without_advantage": float(np.mean(_without_advantage(rollouts))),
        "policy/advantage_mean": float(advantages.mean()),
        "policy/advantage_std": float(advantages.std(ddof=1)) if len(learned) > 1 else 0.0,
        "rollout/length_mean": float(lengths.mean()),
        "rollout/length_max": float(lengths.max()),
        "rollout/truncated_fraction": float(np.mean([each.finish_reason == "length" for each in trajectories])),
        **update_metrics(stats, rollout_logprobs),
        **off_policy_metrics(rollout_logprobs, stats.logprobs, rollouts.lengths),
        **teacher_metrics(rollouts, stats.logprobs),
        **turn_metrics(rollouts),
        **_picture_metrics(trajectories),
        **_task_metrics(rollouts, stats),
        **rollouts.sampling_metrics,
    }
    return with_plugins(own, stats)


def _ages(rollouts: Rollouts) -> dict[str, float]:
    """Return metrics of tokens that earlier steps have sampled; {} if attempts start in the step that they are learned from."""
    if not rollouts.partial:
        return {}
    ages, lengths = rollouts.ages, [length for length in rollouts.lengths if length]
    oldest = np.maximum.reduceat(ages, np.cumsum([0, *lengths[:-1]]))
    return {
        "rollout/resumed_trajectories": float((oldest > 0).sum()),
        "rollout/earlier_tokens_fraction": float((ages > 0).mean()),
        "rollout/oldest_tokens_age": float(ages.max()),
    }


def _task_metrics(rollouts: Rollouts, stats: UpdateStats) -> dict[str, float]:
    """Return the metrics of each task of a mixture, without means of a task of which the step has none; {} of a single task."""
    if not rollouts.tasks:
        return {}
    assert stats.entropies is not None
    size, entropies = rollouts.group_size, torch.split(stats.entropies, rollouts.lengths)
    without_advantage = _without_advantage(rollouts)
    tasks, found = [each.trajectory.prompt.row.task for each in rollouts.graded], dict[str, float]()
    for task in rollouts.tasks:
        groups = [group for group, name in enumerate(tasks[::size]) if name == task]
        learned = [place for place in rollouts.learned if tasks[place] == task]
        graded = [rollouts.graded[place] for place in learned]
        counted = torch.cat([entropies[0][:0], *(entropies[at] for at in rollouts.counted if tasks[at] == task)])
        values: dict[str, Sequence[float] | NDArray[np.float64]] = {
            "reward_mean": rollouts.rewards[learned].tolist(),
            "correct_fraction": [each.score.correct is True for each in graded],
            "tokens_mean": [each.trajectory.tokens for each in graded],
            "entropy": counted.double().numpy(),
            "no_signal_fraction": without_advantage[groups].tolist(),
        }
        found |= {task_metric(task, name): float(np.mean(own)) for name, own in values.items() if len(own)}
        found[task_metric(task, "groups")] = float(len(groups))
        if rollouts.functions:
            found[task_metric(task, "called_fraction")] = _mean([float(bool(each.trajectory.calls)) for each in graded])
    return found


def _picture_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of the problems' pictures; {} for a model that takes text alone."""
    prompts = [(each.prompt.token_ids, each.prompt.pictures) for each in trajectories]
    lengths = [picture_lengths(token_ids, pictures.tokens) for token_ids, pictures in prompts if pictures is not None]
    if not lengths:
        return {}
    return {
        "rollout/pictures_mean": float(np.mean([len(own) for own in lengths])),
        "rollout/picture_tokens_mean": float(np.mean([sum(own) for own in lengths])),
    }


def update_metrics(stats: UpdateStats, rollout_logprobs: ArrayLike) -> dict[str, float]:
    """Return the metrics of an update and the distance of the engine's logprobs from the trainer's. rollout_logprobs: [tokens]"""
    own = {f"policy/{name}": getattr(stats, name) for name in ("loss", "kl", "entropy", "grad_norm", "learning_rate")}
    if stats.vision_grad_norm is not None:
        own["policy/vision_grad_norm"] = stats.vision_grad_norm
    if stats.loss_scale is not None:
        own |= {"policy/loss_scale": stats.loss_scale, OVERFLOWED: float(stats.overflowed)}
    return own | logprob_differences(rollout_logprobs, stats.logprobs)


def logprob_differences(rollout_logprobs: ArrayLike, trainer_logprobs: Tensor) -> dict[str, float]:
    """Return mean and largest difference between the engine's and the trainer's logprobs, both [trained tokens], in nats."""
    difference = np.asarray(rollout_logprobs, dtype=np.float64) - trainer_logprobs.cpu().numpy()
    np.abs(difference, out=difference)
    return {
        "policy/logprob_difference_mean": float(difference.mean()),
        "policy/logprob_difference_max": float(difference.max()),
    }


def with_plugins(own: Mapping[str, float], stats: UpdateStats) -> dict[str, float]:
    """Return the trainer's metrics and, in the group `policy/`, those of the loss and its terms."""
    of_plugins = {f"policy/{name}": value for name, value in stats.metrics.items()}
    clash = sorted(own.keys() & of_plugins.keys())
    assert not clash, f"a loss, correction or term measures {clash}, as the trainer does"
    return {**own, **of_plugins}


def in_brief(metrics: Mapping[str, float], *, has_reference: bool) -> str:
    """Return a one-line progress summary of a finished step, from all of its figures, timings included."""
    words = [f"reward {metrics['reward/mean']:.3f}", f"{metrics['rollout/length_mean']:.0f} tokens"]
    words += [f"KL {metrics['policy/kl']:.2g}"] if has_reference else []
    return ", ".join([*words, f"{metrics['timing/tokens_per_second']:,.0f} tokens/s"])


def _parts(values: Tensor, rollouts: Rollouts) -> list[Floats]:
    """Return the values of each trajectory's tokens."""
    return [part.numpy() for part in torch.split(values.detach().to("cpu", torch.float32), rollouts.lengths)]


def _greedy_rewards(rollouts: Rollouts) -> list[float | None] | None:
    """Return for each trajectory its problem's greedy reward, None where that is left out; None without greedy completions."""
    if rollouts.greedy_rewards is None:
        return None
    rewards = rollouts.greedy_rewards.repeat_interleave(rollouts.group_size).tolist()
    return [None if math.isnan(reward) else reward for reward in rewards]


def _without_advantage(rollouts: Rollouts) -> Flags:
    """Return whether the advantage of every token is 0. [groups]"""
    assert rollouts.advantages is not None
    parts = torch.split(rollouts.advantages, rollouts.lengths)
    has_one = np.array([bool(part.any()) for part in parts]).reshape(-1, rollouts.group_size).any(axis=1)
    return np.asarray(~has_one)


def _reward_components(scores: Sequence[Score]) -> dict[str, float]:
    """Return the unweighted mean of each reward component."""
    names = scores[0].components
    return {f"reward/component/{name}": float(np.mean([s.components[name] for s in scores])) for name in names}


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
