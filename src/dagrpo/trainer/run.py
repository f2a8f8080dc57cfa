"""Inputs, parameters and output paths of a training run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from dagrpo.algorithms.config import Algorithm
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Conversation, Rollout
from dagrpo.trainer.config.runtime import Runtime, SftRuntime
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.config.training import Training
from dagrpo.utils.files import sha256_of, write_json
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.watchdog import USUAL_GRACE

DESCRIPTION = "run.json"  # in the folder of a run's state
AGENT = "agent"  # the folder in a run's state that an agent's program writes to
Report = Callable[[int, Mapping[str, float]], None]  # (step, from 1; its metrics): called for every finished step


def no_report(step: int, metrics: Mapping[str, float]) -> None:
    """Discard metrics: the default report."""


def step_file(step: int) -> str:
    """Return the file name of a step's rollouts; steps count from 1."""
    return f"step_{step:05d}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSplits:
    """Splits of an evaluated task whose problems are held out from training."""

    validation: Path  # validation.parquet, which may have no rows
    test: Path  # test.parquet
    passages: Path  # passages.parquet, for tools that search


class RunFiles(TypedDict):
    """Output paths of a training run: see TrainingRun."""

    state: Path
    server_log: Path
    policy: Path
    metrics: Path
    rollouts: Path
    held_out: Path
    kept: Path


def files_in(folder: Path) -> RunFiles:
    """Return the paths in a single folder, for runs that are not stages."""
    return RunFiles(
        state=folder / "state",
        server_log=folder / "train.server.log",
        policy=folder / "policy",
        metrics=folder / "metrics.parquet",
        rollouts=folder / "rollouts" / "manifest.json",
        held_out=folder / "held_out.parquet",
        kept=folder / "kept" / "manifest.json",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Inputs, parameters and outputs of the train stage."""

    initial: Path  # folder of the checkpoint to start from
    train_splits: Mapping[str, Path]  # train.parquet of each task to learn from, in their order
    seed: int
    rollout: Rollout
    reward: Reward
    algorithm: Algorithm
    training: Training
    runtime: Runtime
    state: Path  # resumable, not an output; belongs to everything above but training.steps and runtime
    server_log: Path
    policy: Path  # output: folder of the trained checkpoint, in the format of `initial`
    metrics: Path  # output: metrics.parquet
    rollouts: Path  # output: rollouts/manifest.json
    held_out: Path  # output: held_out.parquet
    kept: Path  # output: kept/manifest.json, of the policies of training.keep_policies
    shares: Mapping[str, float] = field(default_factory=dict)  # of each of these tasks in a batch; {}: by their sizes
    passages: tuple[Path, ...] = ()  # passages.parquet of each of these tasks, for tools that search
    teacher: Path | None = None  # folder of the teacher's checkpoint, where algorithm.teacher is a folder or of the hub
    held_out_splits: tuple[HeldOutSplits, ...] = ()  # of each task that training.evaluate_every has evaluated
    facts: dict[str, Any] = field(default_factory=dict)  # what a backend adds to provenance.json

    def describe(self) -> None:
        """Write the inputs and parameters of the run beside its state, for replays before the run has outputs."""
        own = {"seed": self.seed, "initial": str(self.initial), "rollouts": str(self.rollouts)}
        splits = {task: str(path) for task, path in self.train_splits.items()}
        digests = {task: sha256_of(path) for task, path in self.train_splits.items()}
        data = {"train_splits": splits, "train_split_digests": digests, "shares": dict(self.shares)}
        sections = {name: getattr(self, name).model_dump(mode="json") for name in ("rollout", "algorithm", "training")}
        digest = sha256_of(self.initial / MANIFEST)
        write_json(self.state / DESCRIPTION, own | data | sections | {"initial_manifest": digest})


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRun:
    """Inputs, parameters and output of the sft stage."""

    model: Path  # folder of the checkpoint to start from
    train_splits: Mapping[str, Path]  # train.parquet of each task to learn from, in their order
    seed: int
    sft: Sft
    runtime: SftRuntime
    state: Path  # resumable, not an output; belongs to everything above but sft.steps and runtime
    tuned: Path  # output: folder of the tuned checkpoint, in the format of `model`
    shares: Mapping[str, float] = field(default_factory=dict)  # of each of these tasks in a batch; {}: by their sizes
    grace_seconds: float = USUAL_GRACE  # to save, after a signal to stop
    conversation: Conversation = field(default_factory=Conversation)  # the form in which demonstrations are written
    deterministic: bool = True  # rollout.deterministic: on a GPU, the same bits whenever it is computed again
