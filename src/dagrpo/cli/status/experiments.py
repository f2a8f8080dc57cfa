"""State of an experiment: running, failed, stale, done or unfinished."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dagrpo.core.errors import UserError, nearest
from dagrpo.core.experiment import task_metric, tasks_among
from dagrpo.pipeline.changes.changes import Change, Changes, Kind
from dagrpo.pipeline.changes.executions import ExecutionRecord, Today, experiments, named, read_record, stage_and_seed
from dagrpo.pipeline.dag import expected
from dagrpo.pipeline.failure_report import FOLDER as FAILURES
from dagrpo.pipeline.failure_report import Failure
from dagrpo.pipeline.failure_report import Kind as Ended
from dagrpo.pipeline.locks import driver, runner_of
from dagrpo.pipeline.raw_inputs import missing_raw
from dagrpo.pipeline.record import STATES
from dagrpo.pipeline.snakemake_private import unfinished_outputs
from dagrpo.utils.checksummed_json import Damaged, read_checksummed
from dagrpo.utils.console import counted
from dagrpo.utils.files import read_object
from dagrpo.utils.locks import noted_holder
from dagrpo.utils.provenance import TOPS, provenances_of
from dagrpo.utils.run_info import step_seconds

DESCRIPTION = "run.json"  # of a training's state
LOCK_NOTE = "lock.json"
STEPS_AVERAGED = 10
REWARD = "reward/mean"
RESULTS = Path("results")
_FAILURE = TypeAdapter(Failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of an active job. The figures are None except in training after its first step."""

    what: str  # "train, seed 0"
    step: int | None = None
    steps: int | None = None
    reward: float | None = None  # mean of the last step
    rewards: Mapping[str, float] = field(default_factory=dict)  # of each task of a mixture
    seconds_left: float | None = None


def at_work(experiment: str) -> list[Progress]:
    """Return the unfinished jobs of this experiment's run; [] unless a run is active."""
    states = [state for state in _states(experiment) if (state / DESCRIPTION).is_file()]  # else of another stage
    training = {progress.what: progress for progress in map(_training, states)}
    starts = tuple(f"{top}/{experiment}/" for top in TOPS)
    jobs = {path: stage_and_seed(path) for path in unfinished_outputs() if path.startswith(starts)}
    started = sorted({named(*job, path) for path, job in jobs.items() if job is not None})
    return [*training.values(), *(Progress(what=what) for what in started if what not in training)]


def _states(experiment: str) -> list[Path]:
    """Return the state folders of active trainings, without those of experiments whose longer name begins alike."""
    folders = [path for path in sorted(STATES.glob(f"{experiment}-*")) if path.name[len(experiment) + 1 :].isalnum()]
    holders = {folder: noted_holder(folder / LOCK_NOTE) for folder in folders}
    return [folder for folder, holder in holders.items() if holder is not None and not holder.process.is_gone]


def _training(state: Path) -> Progress:
    run = read_object(state / DESCRIPTION)
    what, steps = named("train", run["seed"], run["rollouts"]), run["training"]["steps"]
    finished = sorted((state / "metrics").glob("step_*.json"))
    figures = [step for path in finished[-STEPS_AVERAGED:] if (step := _figures(path)) is not None]
    if not figures:
        return Progress(what=what, step=0, steps=steps)
    seconds = sum(step_seconds(step["seconds"]) for step in figures) / len(figures)
    done, last = len(finished), figures[-1]["metrics"]
    names = {task: task_metric(task, "reward_mean") for task in tasks_among(last)}
    return Progress(
        what=what,
        step=done,
        steps=steps,
        reward=last.get(REWARD),
        rewards={task: last[name] for task, name in names.items() if name in last},
        seconds_left=max(0, steps - done) * seconds,
    )


def _figures(path: Path) -> dict[str, Any] | None:
    try:
        return read_checksummed(path)
    except Damaged:  # it is being replaced, or the run will find it and make it again
        return None


class State(StrEnum):
    """State of an experiment, the most urgent one that applies."""

    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"
    STALE = "stale"
    DONE = "done"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A stage that would run again."""

    what: str  # "train, seed 0"
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of one experiment."""

    experiment: str
    state: State
    is_selected: bool  # params.yaml holds it
    score: str | None  # base and trained policy on the first task, as the report has it; None without a report
    made: int  # stages
    expected: int | None  # stages of the whole experiment; None: params.yaml does not hold it
    rollout_bytes: int  # on disk, of all seeds; a file of an output and of a state counts once
    runner: str | None  # the process that runs it
    progress: tuple[Progress, ...]
    stale: tuple[Stale, ...]
    damaged: tuple[str, ...]  # messages about unreadable records
    gone: tuple[str, ...]  # raw files that are not here any more, each with the job that has read it
    failures: tuple[Failure, ...]


def statuses(today: Today, only: Sequence[str] = ()) -> list[Status]:
    """Return the status of each given experiment; by default of every one in this folder, the selected one first.

    Raises UserError if an experiment does not exist.
    """
    changes = Changes(today)
    selected = today.selected.experiment.name if today.selected is not None else None
    failures = all_failures()
    names = dict.fromkeys([*([selected] if selected else []), *experiments(), *sorted(failures)])
    for name in only:
        if name not in names:
            raise UserError(f"There is no experiment `{name}` in this folder: {nearest(name, names)}.")
    chosen = counted([*(only or names)], "status")
    return [_status(name, today, changes, failures.get(name, ())) for name in chosen]


def all_failures() -> dict[str, list[Failure]]:
    """Return the recorded failures of stages by experiment, the latest first."""
    by_experiment: dict[str, list[Failure]] = {}
    for path in sorted(FAILURES.glob("*.json")):
        try:
            failure = _FAILURE.validate_json(path.read_bytes())
        except (OSError, ValidationError):  # damaged, or removed just now
            continue
        parts = Path(failure.log).parts
        if len(parts) > 2 and parts[0] == "logs":
            by_experiment.setdefault(parts[1], []).append(failure)
    return {name: sorted(each, key=lambda failure: -failure.time) for name, each in by_experiment.items()}


def _status(name: str, today: Today, changes: Changes, failures: Sequence[Failure]) -> Status:
    records, damaged = _records(name)
    is_selected = today.selected is not None and today.selected.experiment.name == name
    runner = runner_of(name) or (driver() if is_selected else None)
    params = today.selected if is_selected else next(filter(None, map(today.params_of, records)), None)
    jobs = expected(params, name) if params is not None else None
    current = [each for each in records if jobs is None or each.provenance in jobs]
    stale = (
        *_removed(current, jobs or []),
        *(Stale(what=each.what, changes=tuple(found)) for each in current if (found := changes.of(each))),
    )
    is_complete = any(each.stage == "report" for each in records) if jobs is None else len(current) == len(jobs)
    return Status(
        experiment=name,
        state=_state(runner is not None, failures, bool(stale or damaged), is_complete),
        is_selected=is_selected,
        score=_score(name),
        made=len(current),
        expected=None if jobs is None else len(jobs),
        rollout_bytes=_rollout_bytes(name),
        runner=None if runner is None else str(runner),
        progress=tuple(at_work(name)) if runner is not None else (),
        stale=stale,
        damaged=tuple(damaged),
        gone=tuple(
            f"{path}, which {each.what} has read, is not here any more: its outputs stay as they are"
            for each in current
            for path in missing_raw(each.inputs, each.experiment)
        ),
        failures=tuple(failures),
    )


def _score(experiment: str) -> str | None:
    """Return the report's first line, such as "arithmetic 50.4% -> 93.4% (+0.384 to +0.476)"; None without a report."""
    try:
        tasks = read_object(RESULTS / experiment / "report/metrics.json")
    except (OSError, UserError):  # there is no report, or it is damaged
        return None
    task, score = next((task, score) for task, score in tasks.items() if isinstance(score, dict))
    return f"{task} {score['base']:.1%} -> {score['trained']:.1%} ({score['interval']})"


def _rollout_bytes(experiment: str) -> int:
    folders = [*RESULTS.glob(f"{experiment}/runs/*/rollouts"), *(state / "rollouts" for state in _states(experiment))]
    found = [path.stat() for folder in folders for path in folder.glob("step_*.parquet")]
    return sum({(each.st_dev, each.st_ino): each.st_size for each in found}.values())


def _removed(records: Sequence[ExecutionRecord], jobs: Sequence[Path]) -> Iterator[Stale]:
    """Yield stages whose outputs other stages have read, and whose outputs and records are all removed."""
    read = {Path(path).parent for each in records for path in each.inputs}
    recorded = {each.provenance for each in records}
    for provenance in jobs:
        job = stage_and_seed(str(provenance))
        if provenance not in recorded and provenance.parent in read and not provenance.exists() and job is not None:
            gone = Change(kind=Kind.OUTPUT, name=str(provenance.parent), before=None, now=None)
            yield Stale(what=named(*job, str(provenance)), changes=(gone,))


def _records(name: str) -> tuple[list[ExecutionRecord], list[str]]:
    records, damaged = list[ExecutionRecord](), list[str]()
    for path in provenances_of(name):
        try:
            records.append(read_record(path))
        except UserError as error:
            damaged.append(str(error))
    return records, damaged


def _state(is_running: bool, failures: Sequence[Failure], is_stale: bool, is_complete: bool) -> State:
    if is_running:
        return State.RUNNING
    if failures:
        return State.STOPPED if all(failure.kind == Ended.STOPPED for failure in failures) else State.FAILED
    if is_stale:
        return State.STALE
    return State.DONE if is_complete else State.UNFINISHED
