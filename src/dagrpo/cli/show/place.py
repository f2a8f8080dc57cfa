"""The file of attempts: of a step, an evaluation, or a path."""

import re
from dataclasses import dataclass
from pathlib import Path

from dagrpo.cli.shared import Which
from dagrpo.core.errors import UserError, nearest
from dagrpo.tracking.variations import TRY

RESULTS = Path("results")
STEP = re.compile(r"step_(\d+)\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A file of attempts, with its scores and its run."""

    attempts: Path  # a rollout table
    scores: Path | None  # of the same attempts, row by row; None: the table has all there is, or nothing is graded
    run: Path | None  # the seed's folder; None: the file is part of no run


def run_folder(name: str, seed: int | None, root: Path = RESULTS) -> Path:
    """Return the folder of one seed. `name`: that folder, or an experiment. Raises UserError listing the existing ones."""
    folder = Path(name)
    if (folder / "rollouts").is_dir() or (folder / "eval").is_dir():
        return folder
    runs = folder / "runs" if (folder / "runs").is_dir() else root / name / "runs"
    seeds = sorted(path.name.removeprefix("seed_") for path in runs.glob("seed_*"))
    if not seeds:
        experiments = sorted(path.parent.name for path in root.glob("*/runs"))
        if overrides := [each for each in experiments if each.startswith(f"{folder.name}{TRY}")]:
            raise UserError(
                f"There is no run `{name}`, only override runs of it: give a name of {', '.join(overrides)}."
            )
        if (root / name).is_dir():
            raise UserError(
                f"The experiment `{name}` has no trained step and no evaluation yet: `dagrpo status` says what runs."
            )
        raise UserError(
            f"There is no experiment `{name}` in {root}: {nearest(folder.name, experiments)}. A seed's folder or a parquet file may be "
            "named as well."
        )
    if seed is None and len(seeds) > 1 and "0" not in seeds:
        raise UserError(f"{runs} has the seeds {', '.join(seeds)}: say which with --seed.")
    chosen = str(seed) if seed is not None else "0" if "0" in seeds else seeds[0]
    if chosen not in seeds:
        raise UserError(f"{runs} has no seed {chosen}: it has {', '.join(seeds)}.")
    return runs / f"seed_{chosen}"


def training_step(run: Path, step: int | None) -> Place:
    """Return the rollouts of a step, by default the last one. Raises UserError listing the existing steps."""
    folder = run / "rollouts"
    steps = {int(match.group(1)): path for path in folder.glob("*.parquet") if (match := STEP.fullmatch(path.name))}
    if not steps:
        raise UserError(f"{run} has no rollouts: run the stage train, or name an evaluation with --task.")
    number = max(steps) if step is None else step
    if number not in steps:
        first, last = min(steps), max(steps)
        existing = f"step {first} alone" if first == last else f"the steps {first} to {last}"
        raise UserError(f"{run} has no step {step}: it has {existing}.")
    return Place(attempts=steps[number], scores=None, run=run)


def evaluation(run: Path, task: str, which: Which) -> Place:
    """Return the completions of an evaluation, and their scores if any. Raises UserError listing the existing ones."""
    folder = run / "eval" / task / which
    attempts, scores = folder / "completions.parquet", folder / "scores.parquet"
    if not attempts.is_file():
        existing = sorted(
            str(path.parent.relative_to(run / "eval")) for path in run.glob("eval/*/*/completions.parquet")
        )
        hint = f"it has {', '.join(existing)}" if existing else "it has none yet"
        raise UserError(f"{run} has no evaluation {task}/{which}: {hint} (--task and --which choose).")
    return Place(attempts=attempts, scores=scores if scores.is_file() else None, run=run)


def single_file(path: Path) -> Place:
    """Return a rollout table by its path. Raises UserError if the file does not exist."""
    if not path.is_file():
        raise UserError(f"There is no file {path}: name a step of rollouts/, or a completions.parquet.")
    scores = path.with_name("scores.parquet")
    is_evaluation = path.name == "completions.parquet" and scores.is_file()
    runs = [folder for folder in path.resolve().parents if folder.name.startswith("seed_")]
    return Place(attempts=path, scores=scores if is_evaluation else None, run=runs[0] if runs else None)
