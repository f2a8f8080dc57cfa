"""State of an experiment: running, failed, stale, done or incomplete."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dagrpo.cli.status.progress import Progress, at_work
from dagrpo.core.errors import UserError
from dagrpo.core.suggest import nearest
from dagrpo.pipeline.changes.changes import Change, Changes, Kind
from dagrpo.pipeline.changes.executions import ExecutionRecord, experiments, named, read_record, stage_and_seed
from dagrpo.pipeline.changes.today import Today
from dagrpo.pipeline.dag import expected
from dagrpo.pipeline.failure_report import FOLDER as FAILURES
from dagrpo.pipeline.failure_report import Failure
from dagrpo.pipeline.failure_report import Kind as Ended
from dagrpo.pipeline.locks import driver, runner_of
from dagrpo.utils.provenance import provenances_of

_FAILURE = TypeAdapter(Failure)


class State(StrEnum):
    """The state of an experiment, the most urgent one that applies."""

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
    made: int  # stages
    expected: int | None  # stages of the whole experiment; None: params.yaml does not hold it
    runner: str | None  # the process that runs it
    progress: tuple[Progress, ...]
    stale: tuple[Stale, ...]
    damaged: tuple[str, ...]  # messages about unreadable records
    failures: tuple[Failure, ...]


def statuses(asked: Sequence[str] = ()) -> list[Status]:
    """Return the status of each given experiment; by default of every one in this folder, the selected one first.

    Raises UserError if params.yaml has a mistake, or an experiment does not exist.
    """
    today = Today.read()
    changes = Changes(today)
    selected = today.selected.experiment.name if today.selected is not None else None
    failures = all_failures()
    names = dict.fromkeys([*([selected] if selected else []), *experiments(), *sorted(failures)])
    for name in asked:
        if name not in names:
            raise UserError(f"There is no experiment `{name}` in this folder: {nearest(name, names)}.")
    return [_status(name, today, changes, failures.get(name, ())) for name in asked or names]


def all_failures() -> dict[str, list[Failure]]:
    """Return the recorded failures of stages by experiment, the latest first."""
    found: dict[str, list[Failure]] = {}
    for path in sorted(FAILURES.glob("*.json")):
        try:
            failure = _FAILURE.validate_json(path.read_bytes())
        except (OSError, ValidationError):  # damaged, or removed just now
            continue
        parts = Path(failure.log).parts
        if len(parts) > 2 and parts[0] == "logs":
            found.setdefault(parts[1], []).append(failure)
    return {name: sorted(each, key=lambda failure: -failure.time) for name, each in found.items()}


def _status(name: str, today: Today, changes: Changes, failures: Sequence[Failure]) -> Status:
    executions, damaged = _records(name)
    is_selected = today.selected is not None and today.selected.experiment.name == name
    runner = runner_of(name) or (driver() if is_selected else None)
    params = today.selected if is_selected else next(filter(None, map(today.params_of, executions)), None)
    wanted = expected(params, name) if params is not None else None
    current = [each for each in executions if wanted is None or each.provenance in wanted]
    stale = (
        *_removed(current, wanted or []),
        *(Stale(what=each.what, changes=tuple(found)) for each in current if (found := changes.of(each))),
    )
    is_complete = any(each.stage == "report" for each in executions) if wanted is None else len(current) == len(wanted)
    return Status(
        experiment=name,
        state=_state(runner is not None, failures, bool(stale or damaged), is_complete),
        is_selected=is_selected,
        made=len(current),
        expected=None if wanted is None else len(wanted),
        runner=None if runner is None else str(runner),
        progress=tuple(at_work(name)) if runner is not None else (),
        stale=stale,
        damaged=tuple(damaged),
        failures=tuple(failures),
    )


def _removed(executions: Sequence[ExecutionRecord], wanted: Sequence[Path]) -> Iterator[Stale]:
    """Yield stages whose outputs others have read, and of which nothing is left, their record included."""
    read = {Path(path).parent for each in executions for path in each.inputs}
    left = {each.provenance for each in executions}
    for provenance in wanted:
        job = stage_and_seed(str(provenance))
        if provenance not in left and provenance.parent in read and not provenance.exists() and job is not None:
            gone = Change(kind=Kind.OUTPUT, name=str(provenance.parent), before=None, now=None)
            yield Stale(what=named(*job, str(provenance)), changes=(gone,))


def _records(name: str) -> tuple[list[ExecutionRecord], list[str]]:
    executions, damaged = list[ExecutionRecord](), list[str]()
    for path in provenances_of(name):
        try:
            executions.append(read_record(path))
        except UserError as error:
            damaged.append(str(error))
    return executions, damaged


def _state(is_running: bool, failures: Sequence[Failure], is_stale: bool, is_complete: bool) -> State:
    if is_running:
        return State.RUNNING
    if failures:
        return State.STOPPED if all(failure.kind == Ended.STOPPED for failure in failures) else State.FAILED
    if is_stale:
        return State.STALE
    return State.DONE if is_complete else State.UNFINISHED
