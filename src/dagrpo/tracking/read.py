"""Contents of an execution's MLflow run, read from its outputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from dagrpo.checkpoints.compare import figures_of
from dagrpo.checkpoints.manifest import read_manifest
from dagrpo.core.errors import UserError
from dagrpo.core.metrics import definition_of
from dagrpo.data.card import Card
from dagrpo.evaluation.difficulty import Rating
from dagrpo.evaluation.difficulty import metrics_to_log as rating_metrics
from dagrpo.evaluation.held_out_table import figures as held_out_figures
from dagrpo.evaluation.outcomes import group_of
from dagrpo.evaluation.scoring import estimates_of, metrics_to_log
from dagrpo.report.attempt import Attempt, attempt_of
from dagrpo.report.build import metrics_to_log as difference_metrics
from dagrpo.report.inputs import Inputs, read_inputs
from dagrpo.report.samples import evenly, ranked
from dagrpo.report.times import FILE as TIMES
from dagrpo.report.times import times_of_seeds
from dagrpo.rollout.attempts_file import AttemptsFile
from dagrpo.rollout.table import OF_CONVERSATIONS, TRAINING_ROLLOUTS, has_conversations, with_texts, without_discarded
from dagrpo.tracking.contents import EVALUATION, STEP, Artifact, Contents, DataSet, Summary
from dagrpo.tracking.curve import Step, read_curve
from dagrpo.tracking.execution import LOGS, Execution
from dagrpo.tracking.names import metric_name
from dagrpo.tracking.problems import prompts_of
from dagrpo.tracking.summaries import findings_of, recorded_curves, summaries
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.run import step_file
from dagrpo.utils.files import read_object, sha256_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import PROVENANCE
from dagrpo.utils.run_info import read_times
from dagrpo.utils.tables import read_parquet

TRACED_STEPS = 5  # of a training run, evenly from the first to the last
LONGEST_TRACED = 10_000  # characters of one text of a trace
MAX_TABLE_ROWS = 1000  # a table of the UI is for reading; the whole one is the stage's output
COLUMNS_OF_SAMPLES = ("problem_index", "sample_index", "prompt", "completion", "ground_truth", "finish_reason")
COLUMNS_OF_TRAINING = ("prompt", "completion", "ground_truth", "extracted", "reward", "advantage", "finish_reason")


def contents_of(execution: Execution) -> Contents:
    """Return the run's contents from an execution's files. Raises UserError if a file is missing or was changed since.

    For an unfinished execution: the curve so far.
    """
    contents = Contents()
    if execution.status != "FINISHED":
        contents.steps += curve_of(execution)
    else:
        READERS.get(execution.stage, _sft)(execution, contents)
    return contents


def curve_of(execution: Execution) -> list[Step]:
    """Return the stage's metrics step by step, if it ran on this machine."""
    if execution.log is None:
        return []
    end = float("inf") if execution.ended is None else execution.ended + 1000  # an account has whole seconds
    steps, _ = read_curve(execution.log, since=execution.started)
    return [step for step in steps if step.time <= end]


def _checkpoint(execution: Execution, contents: Contents) -> None:
    manifest = next(Path(path) for path in execution.outputs if Path(path).name == MANIFEST)
    _log(execution, contents, figures_of(manifest.parent, read_manifest(_unchanged(execution, str(manifest)))))


def _prepare(execution: Execution, contents: Contents) -> None:
    card_file = _file(execution, "card.json")
    card = TypeAdapter(Card).validate_python(read_object(card_file))
    for split in card.counts:
        path = card_file.with_name(f"{split}.parquet")
        name, digest = f"{card.task}/{split}", execution.outputs[str(path)]
        contents.data_sets.append(DataSet(name=name, digest=digest, path=path, context=split))
    _log(execution, contents, card.metrics())


def _difficulty(execution: Execution, contents: Contents) -> None:
    if not execution.record["params"]["difficulty"]["samples"]:
        return
    contents.data_sets += _read_splits(execution, "train", "difficulty")
    table = read_parquet(_file(execution, "difficulty.parquet"))
    counts = table.select(["right", "unverifiable", "samples"]).to_pylist()
    _log(execution, contents, rating_metrics([Rating(**row) for row in counts]))


def _sft(execution: Execution, contents: Contents) -> None:
    contents.steps += curve_of(execution)
    contents.tables["metrics"] = _definitions(contents.steps)


def _train(execution: Execution, contents: Contents) -> None:
    contents.data_sets += _read_splits(execution, "train", "training")
    metrics, held_out = _file(execution, "metrics.parquet"), _file(execution, "held_out.parquet")
    contents.steps += _training_curve(execution, metrics, held_out)
    contents.tables["metrics"] = _definitions(contents.steps)
    contents.artifacts += [Artifact(name=path.name, content=path.read_bytes()) for path in (metrics, held_out)]
    folder = next(Path(path).parent for path in execution.outputs if Path(path).parent.name == "rollouts")
    last = read_parquet(
        metrics, columns=("step",)
    ).num_rows  # training.patience may have ended it before training.steps
    if (folder / step_file(last)).is_file():  # rollouts are pulled last: they are the largest of what a run makes
        file = AttemptsFile(folder / step_file(last))
        if (table := with_texts(without_discarded(file.short))).num_rows:
            contents.tables["completions_last_step"] = _first_attempts(file, table)
    for step in evenly(range(1, last + 1), TRACED_STEPS):
        if (folder / step_file(step)).is_file():
            file = AttemptsFile(folder / step_file(step))
            table = with_texts(without_discarded(file.short))
            contents.traces += _traced(execution, table, partial(file.rows_of, table))


def _definitions(steps: Iterable[Step]) -> pa.Table:
    """Return name, meaning, unit and better direction of each recorded metric; a user's plug-in has no definition."""
    names = dict.fromkeys(name for step in steps for name in step.values)
    rows = [
        {"metric": metric_name(name), "meaning": each.meaning, "unit": each.unit, "better": each.better or ""}
        for name in names
        if (each := definition_of(name)) is not None
    ]
    return pa.Table.from_pylist(rows)


def _training_curve(execution: Execution, metrics: Path, held_out: Path) -> Iterator[Step]:
    """Yield the metrics of each step, its seconds and checks if made here, and the figures of held-out problems."""
    assert execution.ended is not None
    values: dict[int, dict[str, float]] = {}
    moments: dict[int, int] = {}
    for reported in curve_of(execution):
        values.setdefault(reported.step, {}).update(reported.values)
        moments[reported.step] = reported.time
    seconds = (read_times(execution.log.parent, metrics) if execution.log else None) or []
    for step, timing in enumerate(seconds, start=1):
        values.setdefault(step, {}).update(timing)
    for row in pq.read_table(metrics).to_pylist():
        own = {name: value for name, value in row.items() if name != STEP and value is not None}
        values.setdefault(row[STEP], {}).update(own)
    for step, figures in held_out_figures(read_parquet(held_out).to_pylist()).items():
        values.setdefault(step, {}).update(figures)
    for step in sorted(values):
        yield Step(step, moments.get(step, execution.ended), values[step])


def _sample(execution: Execution, contents: Contents) -> None:
    contents.data_sets += _read_splits(execution, "test", EVALUATION)
    contents.problems += [(data, prompts_of(data.path)) for data in contents.data_sets]
    completions = read_parquet(_file(execution, "completions.parquet"))
    _log(execution, contents, {"completions": completions.num_rows})
    contents.tables["completions"] = _first_rows(completions, COLUMNS_OF_SAMPLES)


def _score(execution: Execution, contents: Contents) -> None:
    result = read_object(_file(execution, "scores.json"))
    scores = read_parquet(_file(execution, "scores.parquet"))
    group, estimates = group_of(result["task"], oracle=result["oracle"]), estimates_of(result)
    bounds = {f"{name}_{bound}" for name in estimates for bound in ("low", "high")}
    figures = {name: value for name, value in metrics_to_log(result).items() if name not in bounds}
    _log(execution, contents, {f"{group}/{name}": value for name, value in figures.items()})
    for name, each in estimates.items():
        contents.tags[f"interval.{group}/{name}"] = f"{each.low:.4f} to {each.high:.4f}"
    contents.tables["completions"] = scores.slice(0, MAX_TABLE_ROWS)
    contents.traces += _traced(execution, scores, lambda positions: scores.take(positions).to_pylist())


def _report(execution: Execution, contents: Contents) -> None:
    record, experiment = execution.record, execution.record["experiment"]
    inputs = _inputs_of_report(execution)
    findings = findings_of(inputs, record["params"], record.get("overrides", {}))
    _log(execution, contents, difference_metrics(findings.comparisons))
    contents.artifacts += _pages_to_look_at(execution)
    metrics = [Path(path) for path in record["inputs"] if Path(path).name == "metrics.parquet"]
    times = times_of_seeds(metrics, LOGS / experiment)
    for seed, content in summaries(findings, times).items():
        contents.summaries.append(Summary(seed=seed, content=content, curves=recorded_curves(inputs, seed)))


def _inputs_of_report(execution: Execution) -> Inputs:
    read = [Path(path) for path in execution.record["inputs"]]
    missing = next((path for path in read if not path.is_file()), None)
    if missing is not None:
        raise UserError(f"{missing} is missing: restore it with `dvc pull`")
    return read_inputs(
        execution.record["experiment"],
        scores=[path for path in read if path.name == "scores.parquet"],
        summaries=[path for path in read if path.name == "scores.json"],
        metrics=[path for path in read if path.name == "metrics.parquet"],
        rollouts=[path for path in read if path.parent.name == "rollouts"],
        held_out=[path for path in read if path.name == "held_out.parquet"],
        provenance=[path for path in read if path.name.endswith(PROVENANCE)],
    )


def _pages_to_look_at(execution: Execution) -> Iterator[Artifact]:
    """Yield the report, which has its pictures in it, its figures, and the page of times."""
    html = _file(execution, "report.html")
    yield Artifact(name=html.name, content=html.read_bytes())
    for path in map(Path, execution.outputs):
        if path.parent.name == "figures":
            yield Artifact(name=path.name, content=_unchanged(execution, str(path)).read_bytes(), folder="figures")
    times = LOGS / execution.record["experiment"] / TIMES
    if execution.log is not None and times.is_file():
        yield Artifact(name=times.name, content=times.read_bytes())


def _log(execution: Execution, contents: Contents, values: Mapping[str, float]) -> None:
    assert execution.ended is not None
    contents.steps.append(Step(0, execution.ended, values))


def _traced(
    execution: Execution, table: pa.Table, rows: Callable[[Sequence[int]], Sequence[Mapping[str, Any]]]
) -> list[list[Attempt]]:
    """Return the attempts to trace of a table, or of its short columns; `rows` returns the whole rows at some positions."""
    count = execution.record.get("runtime", {}).get("traces", Runtime().traces)
    if not count or not table.num_rows:
        return []
    return [[attempt_of(row, LONGEST_TRACED) for row in rows(evenly(ranked(table), count))]]


def _first_attempts(file: AttemptsFile, table: pa.Table) -> pa.Table:
    """Return the first of a step's attempts; `table`: their short columns."""
    columns = [*COLUMNS_OF_TRAINING, *(OF_CONVERSATIONS if has_conversations(table) else [])]
    unshown = [name for name in file.columns if name not in columns]
    rows = file.rows_of(table, range(min(table.num_rows, MAX_TABLE_ROWS)), unshown)
    return pa.Table.from_pylist(rows, schema=pa.schema([TRAINING_ROLLOUTS.field(name) for name in columns]))


def _first_rows(table: pa.Table, columns: Iterable[str]) -> pa.Table:
    names = [*columns, *(OF_CONVERSATIONS if has_conversations(table) else [])]
    return table.select(names).slice(0, MAX_TABLE_ROWS)


def _read_splits(execution: Execution, split: str, context: str) -> list[DataSet]:
    """Return the splits of that name among the inputs that still exist here, unchanged."""
    data_sets = []
    for name, digest in execution.record["inputs"].items():
        path = Path(name)
        if path.name == f"{split}.parquet" and path.is_file() and sha256_of(path) == digest:
            data = DataSet(name=f"{path.parent.name}/{split}", digest=digest, path=path, context=context)
            data_sets.append(data)
    return data_sets


def _file(execution: Execution, name: str) -> Path:
    return _unchanged(execution, next(path for path in execution.outputs if Path(path).name == name))


def _unchanged(execution: Execution, path: str) -> Path:
    """Return an output's path. Raises UserError if it is missing or changed."""
    if not Path(path).is_file() or sha256_of(Path(path)) != execution.outputs[path]:
        raise UserError(f"{path} is missing or has changed: restore it with `dvc pull`")
    return Path(path)


READERS: Mapping[str, Callable[[Execution, Contents], None]] = {
    "model": _checkpoint,
    "prepare": _prepare,
    "sft": _sft,
    "difficulty": _difficulty,
    "convert": _checkpoint,
    "train": _train,
    "export": _checkpoint,
    "sample": _sample,
    "score": _score,
    "report": _report,
}
