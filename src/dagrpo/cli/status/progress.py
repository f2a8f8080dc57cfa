"""Progress of an active run: started jobs; for training more figures.

Those are the step, the reward and the time left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.pipeline.changes.executions import named, stage_and_seed
from dagrpo.pipeline.record import STATES
from dagrpo.pipeline.snakemake.private import unfinished_outputs
from dagrpo.utils.checksummed_json import Damaged, read_sealed
from dagrpo.utils.files import read_object
from dagrpo.utils.locks import noted_holder
from dagrpo.utils.provenance import TOPS
from dagrpo.utils.timings import step_seconds

DESCRIPTION = "run.json"  # of a training's state
LOCK_NOTE = "lock.json"
STEPS_AVERAGED = 10
REWARD = "reward/mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an active job. The figures are those of training; None for other stages, and before the first step."""

    what: str  # "train, seed 0"
    step: int | None = None
    steps: int | None = None
    reward: float | None = None  # mean of the last step
    seconds_left: float | None = None


def at_work(experiment: str) -> list[Progress]:
    """Return the jobs that a run of this experiment has begun and not ended; [] unless a run is active."""
    training = {progress.what: progress for progress in map(_training, _states(experiment)) if progress is not None}
    begun = sorted(set(_begun(experiment)))
    others = [Progress(what=what) for what in begun if what not in training]
    return [*training.values(), *others]


def _states(experiment: str) -> list[Path]:
    """Return the states of trainings that a process holds now, without those of `<experiment>-with-a-longer-name`."""
    folders = [path for path in sorted(STATES.glob(f"{experiment}-*")) if path.name[len(experiment) + 1 :].isalnum()]
    return [folder for folder in folders if _is_held(folder)]


def _is_held(folder: Path) -> bool:
    holder = noted_holder(folder / LOCK_NOTE)
    return holder is not None and not holder.process.is_gone


def _training(state: Path) -> Progress | None:
    """Return the progress of a training; None if the state is another stage's."""
    try:
        run = read_object(state / DESCRIPTION)
        what, steps = named("train", int(run["seed"]), str(run["rollouts"])), int(run["training"]["steps"])
    except (OSError, UserError, KeyError, TypeError, ValueError):
        return None
    finished = sorted((state / "metrics").glob("step_*.json"))
    figures = [step for path in finished[-STEPS_AVERAGED:] if (step := _figures(path)) is not None]
    if not figures:
        return Progress(what=what, step=0, steps=steps)
    seconds = sum(step_seconds(step["seconds"]) for step in figures) / len(figures)
    done = len(finished)
    reward = figures[-1]["metrics"].get(REWARD)
    return Progress(what=what, step=done, steps=steps, reward=reward, seconds_left=max(0, steps - done) * seconds)


def _figures(path: Path) -> dict[str, Any] | None:
    try:
        return read_sealed(path)
    except Damaged:  # it is being replaced, or the run will find it and make it again
        return None


def _begun(experiment: str) -> Iterator[str]:
    """Yield the jobs that Snakemake has noted as begun."""
    starts = tuple(f"{top}/{experiment}/" for top in TOPS)
    for path in unfinished_outputs():
        job = stage_and_seed(path) if path.startswith(starts) else None
        if job is not None:
            yield named(*job, path)
