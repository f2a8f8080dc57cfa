"""Record of finished steps: rollouts, metrics and seconds.

There is one file of each per step; they are merged at the end.
"""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dagrpo.core.image_tokens import picture_lengths
from dagrpo.core.types import Score
from dagrpo.rollout.table import discarded_table, training_table
from dagrpo.rollout.trajectory import Trajectory
from dagrpo.trainer.batches.step_rollouts import StepRollouts
from dagrpo.trainer.checks import logprob_differences
from dagrpo.trainer.checks.finite import OVERFLOWED
from dagrpo.trainer.integrity import require_whole_file
from dagrpo.trainer.off_policy import off_policy_metrics
from dagrpo.trainer.run import step_file
from dagrpo.trainer.sync.digest_table import FILE as DIGESTS
from dagrpo.trainer.sync.digest_table import StepDigests, as_json, digest_table
from dagrpo.trainer.teacher import teacher_metrics
from dagrpo.trainer.turn_metrics import turn_metrics
from dagrpo.trainer.update import UpdateStats
from dagrpo.utils.checksummed_json import Damaged, read_checksummed, write_checksummed
from dagrpo.utils.files import atomic_folder, link_or_copy, write_json
from dagrpo.utils.manifest import entry_of
from dagrpo.utils.tables import write_parquet


class Record:
    """Recorded steps of a run that may be interrupted, beside its state and complete up to it.

    Raises Damaged if a step's files have changed. The run then resumes from a state before that step.
    """

    def __init__(self, root: Path) -> None:
        self._rollouts = root / "rollouts"
        self._metrics = root / "metrics"

    def add(
        self,
        step: int,
        rollouts: pa.Table,
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        digests: StepDigests,
    ) -> None:
        """Store a finished step (1-based). Rewriting it after a resume changes only the seconds."""
        write_parquet(self.rollouts(step), rollouts)
        entry = asdict(entry_of(self.rollouts(step)))
        content = {"metrics": dict(metrics), "seconds": dict(seconds), "rollouts": entry, "digests": as_json(digests)}
        write_checksummed(self._metrics / f"step_{step:05d}.json", content)

    def rollouts(self, step: int) -> Path:
        """Return the rollouts file of a finished step."""
        return self._rollouts / step_file(step)

    def require_whole(self, steps: int) -> None:
        """Check the files of the first steps. Raises Damaged if one has changed, so that its step is computed again."""
        for step in range(1, steps + 1):
            try:
                require_whole_file(self.rollouts(step), self._step(step)["rollouts"])
            except Damaged as damage:
                again = f"{damage.fault}, and step {step}, which belongs to the result, has to be made again"
                raise Damaged(damage.path, again) from None

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of a finished step that belong to its result."""
        return dict(self._step(step)["metrics"])

    def reported(self, step: int) -> dict[str, float]:
        """Return all figures of a finished step, including the seconds."""
        return self.metrics(step) | dict(self._step(step)["seconds"])

    def digests(self, step: int) -> StepDigests:
        """Return the digests of a finished step."""
        return StepDigests.of_json(self._step(step)["digests"])

    @property
    def steps(self) -> int:
        """Return the number of consecutive recorded steps, from the first one on."""
        return next(step for step in itertools.count() if not (self._metrics / f"step_{step + 1:05d}.json").is_file())

    def write_metrics(self, steps: int, path: Path) -> None:
        """Write metrics.parquet: one row per step, without a gap. Seconds are left out, as they would make the bytes differ."""
        rows = [{"step": step, **self.metrics(step)} for step in range(1, steps + 1)]
        assert all(row.keys() == rows[0].keys() for row in rows), "steps of one run have other figures"
        fields = [("step", pa.int32()), *((name, pa.float64()) for name in rows[0] if name != "step")]
        write_parquet(path, pa.Table.from_pylist(rows, schema=pa.schema(fields)))

    def write_rollouts(self, steps: int, manifest: Path) -> None:
        """Write the folder of rollouts with the steps' digests, its manifest last: hard links where the disk allows, else copies."""
        self.require_whole(steps)
        with atomic_folder(manifest.parent) as folder:
            files = {}
            for step in range(1, steps + 1):
                link_or_copy(self.rollouts(step), folder / step_file(step))
                files[step_file(step)] = self._step(step)["rollouts"]
            write_parquet(folder / DIGESTS, digest_table({step: self.digests(step) for step in range(1, steps + 1)}))
            files[DIGESTS] = asdict(entry_of(folder / DIGESTS))
            write_json(folder / manifest.name, {"files": files})

    def _step(self, step: int) -> dict[str, dict[str, Any]]:
        path = self._metrics / f"step_{step:05d}.json"
        match read_checksummed(path):
            case {"metrics": dict(), "seconds": dict(), "rollouts": dict(), "digests": dict()} as content:
                return content
        raise Damaged(path, "does not describe a step")


class Clock:
    """Seconds of the parts of a step, as metrics of the group `timing/`. Not part of any result."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Add the time since the last lap to that of a part, which may come again."""
        now, name = time.perf_counter(), f"timing/{part}_seconds"
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    def split(self, part: str, inner: str, seconds: float) -> None:
        """Move `seconds` from the time of a part to that of another one."""
        self.laps[f"timing/{part}_seconds"] -= seconds
        self.laps[f"timing/{inner}_seconds"] = seconds


def rollout_rows(rollouts: StepRollouts, trainer_logprobs: Tensor) -> pa.Table:
    """Return the table of a step's rollouts: prompt by prompt in sampling order, including the discarded ones.

    trainer_logprobs: [tokens], of the policy before the update.
    """
    assert rollouts.advantages is not None
    advantages = [part.tolist() for part in torch.split(rollouts.advantages, rollouts.lengths)]
    table = training_table(
        rollouts.step + 1,
        rollouts.graded,
        rewards=rollouts.rewards.tolist(),
        advantages=rollouts.trajectory_advantages,
        token_advantages=[values if len(set(values)) > 1 else [] for values in advantages],
        trainer_logprobs=[part.tolist() for part in torch.split(trainer_logprobs, rollouts.lengths)],
        teacher_logprobs=_teacher_logprobs(rollouts),
        greedy_rewards=_greedy_rewards(rollouts),
    )
    if rollouts.drawn is None or not rollouts.drawn.discarded:
        return table
    used = np.repeat(rollouts.drawn.used, rollouts.group_size)
    place_in_order = np.argsort(np.argsort(~used, kind="stable"), kind="stable")
    return pa.concat_tables([table, discarded_table(rollouts.step + 1, rollouts.drawn.discarded)]).take(place_in_order)


def step_metrics(rollouts: StepRollouts, stats: UpdateStats) -> dict[str, float]:
    """Return a row of metrics.parquet without its step: the figures that belong to a step's result. Timings do not.

    Rewards, answers and lengths are of the trajectories that are learned from.
    """
    kept = rollouts.kept
    rewards = rollouts.rewards[kept].numpy().astype(np.float64)
    advantages = np.array(rollouts.trajectory_advantages)[kept]
    trajectories = [rollouts.graded[place].trajectory for place in kept]
    scores = [rollouts.graded[place].score for place in kept]
    lengths = np.array([trajectory.tokens for trajectory in trajectories], dtype=np.float64)
    rollout_logprobs = rollouts.logprobs
    own = {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        **_greedy_reward_mean(rollouts),
        "reward/accuracy": float(np.mean([score.correct is True for score in scores])),
        "reward/missing_answer_fraction": float(np.mean([score.verdict == "missing" for score in scores])),
        "reward/unverifiable_fraction": float(np.mean([score.verdict == "unverifiable" for score in scores])),
        **_reward_components(scores),
        **({} if rollouts.staleness is None else {"rollout/staleness": float(rollouts.staleness)}),
        "rollout/groups_without_spread": float(np.mean(~rollouts.spread)),
        "rollout/groups_without_advantage": _without_advantage(rollouts),
        "policy/advantage_mean": float(advantages.mean()),
        "policy/advantage_std": float(advantages.std(ddof=1)) if len(kept) > 1 else 0.0,
        "rollout/length_mean": float(lengths.mean()),
        "rollout/length_max": float(lengths.max()),
        "rollout/truncated_fraction": float(np.mean([each.finish_reason == "length" for each in trajectories])),
        **update_metrics(stats, rollout_logprobs),
        **off_policy_metrics(rollout_logprobs, stats.logprobs, rollouts.lengths),
        **teacher_metrics(rollouts, stats.logprobs),
        **turn_metrics(rollouts),
        **_picture_metrics(trajectories),
        **(rollouts.drawn.figures if rollouts.drawn else {}),
    }
    return with_plugins(own, stats)


def _picture_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of the problems' pictures; {} for a model that takes text alone."""
    prompts = [(each.problem.token_ids, each.problem.pictures) for each in trajectories]
    lengths = [picture_lengths(token_ids, pictures.tokens) for token_ids, pictures in prompts if pictures is not None]
    if not lengths:
        return {}
    return {
        "rollout/pictures_mean": float(np.mean([len(own) for own in lengths])),
        "rollout/picture_tokens_mean": float(np.mean([sum(own) for own in lengths])),
    }


def update_metrics(stats: UpdateStats, rollout_logprobs: Sequence[float]) -> dict[str, float]:
    """Return the metrics of an update and the distance of the engine's logprobs from the trainer's. rollout_logprobs: [tokens]"""
    own = {f"policy/{name}": getattr(stats, name) for name in ("loss", "kl", "entropy", "grad_norm", "learning_rate")}
    if stats.vision_grad_norm is not None:
        own["policy/vision_grad_norm"] = stats.vision_grad_norm
    if stats.loss_scale is not None:
        own |= {"policy/loss_scale": stats.loss_scale, OVERFLOWED: float(stats.overflowed)}
    return own | logprob_differences(rollout_logprobs, stats.logprobs)


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


def _teacher_logprobs(rollouts: StepRollouts) -> list[list[float]] | None:
    """Return the teacher's logprobs of each trajectory's tokens; None without a teacher."""
    told = rollouts.teacher_logprobs
    return None if told is None else [part.tolist() for part in torch.split(told, rollouts.lengths)]


def _greedy_rewards(rollouts: StepRollouts) -> list[float | None] | None:
    """Return for each trajectory its problem's greedy reward, None where that is left out; None without greedy completions."""
    if rollouts.greedy_rewards is None:
        return None
    rewards = rollouts.greedy_rewards.repeat_interleave(rollouts.group_size).tolist()
    return [None if math.isnan(reward) else reward for reward in rewards]


def _greedy_reward_mean(rollouts: StepRollouts) -> dict[str, float]:
    """Return the mean greedy reward as a metric; {} without greedy completions."""
    if rollouts.greedy_rewards is None:
        return {}
    return {"reward/greedy_mean": float(np.nanmean(rollouts.greedy_rewards.numpy().astype(np.float64)))}


def _without_advantage(rollouts: StepRollouts) -> float:
    """Return the share of groups in which the advantage of every token is 0."""
    assert rollouts.advantages is not None
    parts = torch.split(rollouts.advantages, rollouts.lengths)
    has_one = np.array([bool(part.any()) for part in parts]).reshape(-1, rollouts.group_size).any(axis=1)
    return float(np.mean(~has_one))


def _reward_components(scores: Sequence[Score]) -> dict[str, float]:
    """Return the unweighted mean of each reward component."""
    names = scores[0].components
    return {f"reward/component/{name}": float(np.mean([s.components[name] for s in scores])) for name in names}
