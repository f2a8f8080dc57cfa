"""Recorded run: read from its outputs, or from its state if unfinished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.algorithms.config import Algorithm
from dagrpo.core.errors import UserError
from dagrpo.core.experiment import shares_of
from dagrpo.core.section import Section
from dagrpo.models.pictures import takes_pictures
from dagrpo.pipeline.declaration import rated_splits
from dagrpo.pipeline.record import STATES, state_folder
from dagrpo.pipeline.stages.train import STAGE
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import DESCRIPTION, step_file
from dagrpo.trainer.state import states
from dagrpo.trainer.state.digest_table import FILE, Computed, StepDigests, read_digests
from dagrpo.trainer.state.records import Record
from dagrpo.utils.files import read_object, sha256_of
from dagrpo.utils.manifest import MANIFEST, fault_of, listed_files
from dagrpo.utils.provenance import PROVENANCE
from dagrpo.utils.tables import read_parquet

RESTORE = "restore it (`dvc pull`), or run the stage train again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Inputs for recomputing a run's steps, with the recorded results."""

    folder: Path  # results/E/runs/seed_S
    seed: int
    rollout: Rollout
    algorithm: Algorithm
    training: Training
    initial: Path  # folder of the checkpoint that it started from
    train_splits: Mapping[str, Path]  # of the problems, by task; the only source of their pictures
    shares: Mapping[str, float]  # as TrainingRun has them
    state: Path  # folder of its saved states; may be missing
    rollouts: Path  # folder with a table per step
    steps: int  # recorded steps, from the first on
    digests: Mapping[int, StepDigests]  # by step, from 1
    grad_norms: Mapping[int, float]  # by step
    environment: Mapping[str, str] | None  # in which it was computed; None if not recorded

    def table(self, step: int) -> Path:
        """Return the path of a step's rollouts."""
        return self.rollouts / step_file(step)

    def computed(self, steps: Sequence[int]) -> Computed:
        """Return the conditions under which the steps of a replay were computed, with the last one's micro-batches.

        Raises UserError if the number of processes, threads or copies, or the device, differs between them.
        """
        saved = states.nearest(self.state, steps[0] - 1)
        first = 1 if saved is None else saved.step + 1
        for step in range(first + 1, steps[-1] + 1):
            before, this = self.digests[step - 1].computed, self.digests[step].computed
            if _described(before) != _described(this):
                raise UserError(
                    f"{self.folder}: step {step - 1} was computed by {_described(before)}, and step {step} by {_described(this)}: a "
                    f"replay cannot change that on its way from step {first} to step {steps[-1]}. Ask for steps up to {step - 1}, or "
                    f"for later ones where the state after step {step - 1} was kept (runtime.training.keep_states)."
                )
        return self.digests[steps[-1]].computed


def _described(computed: Computed) -> str:
    copies = f" and {computed.copies} copies of the policy" if computed.copies > 1 else ""
    return f"{computed.processes} processes with {computed.threads} threads each{copies} on {computed.device}"


def read_run(folder: Path) -> RecordedRun:
    """Return the run of a seed's folder. Raises UserError if there is no run, or if its files have changed."""
    provenance = folder / "policy" / PROVENANCE
    if provenance.is_file():
        return _finished(folder, provenance)
    described = {path: Path(read_object(path)["rollouts"]) for path in STATES.glob(f"*/{DESCRIPTION}")}
    own = [path for path, rollouts in described.items() if rollouts.resolve().parent.parent == folder.resolve()]
    if not own:
        raise UserError(
            f"{folder} has no {provenance.relative_to(folder)}, and {STATES} has no state of it: run the stage train first."
        )
    return unfinished(folder, max(own, key=lambda path: path.stat().st_mtime).parent)


def unfinished(folder: Path, states: Path) -> RecordedRun:
    """Return the run whose states are in `states`, up to its last recorded step."""
    described, record = read_object(states / DESCRIPTION), Record(states)
    _require_the_same(Path(described["initial"]) / MANIFEST, described["initial_manifest"])
    splits = {task: Path(path) for task, path in described["train_splits"].items()}
    _require_the_same_pictures(Path(described["initial"]), splits, described["train_split_digests"])
    record.require_whole(record.steps)
    steps = range(1, record.steps + 1)
    return RecordedRun(
        folder=folder,
        seed=described["seed"],
        **_sections(described),
        initial=Path(described["initial"]),
        train_splits=splits,
        shares=described["shares"],
        state=states,
        rollouts=record.rollouts(1).parent,
        steps=record.steps,
        digests={step: record.digests(step) for step in steps},
        grad_norms={step: record.metrics(step)["policy/grad_norm"] for step in steps},
        environment=None,
    )


def _finished(folder: Path, provenance: Path) -> RecordedRun:
    record, rollouts = read_object(provenance), folder / "rollouts"
    recorded = {**record["inputs"], **record["outputs"]}
    for name in (f"initial/{MANIFEST}", f"rollouts/{MANIFEST}", "metrics.parquet"):
        noted = [digest for path, digest in recorded.items() if path.endswith(f"/{name}")]
        if not noted:
            raise UserError(f"{provenance} says nothing of {name}: {RESTORE}.")
        _require_the_same(folder / name, noted[0])
    for name, entry in listed_files(rollouts / MANIFEST).items():
        if fault := fault_of(rollouts / name, entry):
            raise UserError(f"{rollouts / name} {fault}: {RESTORE}.")
    train = record["params"]["experiment"]["train"]
    results = folder.resolve().parents[1]
    splits = rated_splits(train, results)
    of_splits = {
        task: digest
        for task, split in splits.items()
        for path, digest in recorded.items()
        if path.endswith(f"/{split.relative_to(results)}")
    }
    _require_the_same_pictures(folder / "initial", splits, of_splits)
    metrics = read_parquet(folder / "metrics.parquet")
    digests = read_digests(rollouts / FILE)
    return RecordedRun(
        folder=folder,
        seed=record["seed"],
        **_sections(record["params"]),
        initial=folder / "initial",
        train_splits=splits,
        shares=shares_of(train),
        state=state_folder(STAGE, record),
        rollouts=rollouts,
        steps=len(digests),
        digests=digests,
        grad_norms=dict(zip(metrics["step"].to_pylist(), metrics["policy/grad_norm"].to_pylist(), strict=True)),
        environment=record["environment"],
    )


def _sections(params: Mapping[str, Any]) -> dict[str, Any]:
    kinds: dict[str, type[Section]] = {"rollout": Rollout, "algorithm": Algorithm, "training": Training}
    return {name: kind.model_validate(params[name]) for name, kind in kinds.items()}


def _require_the_same_pictures(initial: Path, splits: Mapping[str, Path], digests: Mapping[str, str]) -> None:
    """Require the recorded splits if the model takes pictures, which are read from them. Raises UserError."""
    for task, split in splits.items() if takes_pictures(initial) else ():
        _require_the_same(split, digests.get(task, ""))


def _require_the_same(path: Path, digest: str) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing: {RESTORE}.")
    if sha256_of(path) != digest:
        raise UserError(f"{path} is not the file that the run has on record: {RESTORE}.")
