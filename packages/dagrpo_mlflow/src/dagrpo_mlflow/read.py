"""Contents of an execution's MLflow run, read from its outputs."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities import Dataset, DatasetInput, InputTag
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
from dagrpo.report.inputs import read_inputs
from dagrpo.report.samples import evenly, ranked
from dagrpo.report.times import FILE as TIMES
from dagrpo.report.times import times_of_seeds
from dagrpo.rollout.attempts_file import AttemptsFile
from dagrpo.rollout.table import with_texts, without_discarded
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.run import step_file
from dagrpo.utils.files import read_object, sha256_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import PROVENANCE
from dagrpo.utils.run_info import read_times
from dagrpo.utils.tables import read_parquet
from dagrpo_mlflow.curve import Step, read_curve
from dagrpo_mlflow.execution import LOGS, Execution
from dagrpo_mlflow.names import MAX_DATASET_DIGEST, metric_name
from dagrpo_mlflow.summaries import Summary, summaries

STEP = "step"
TRACED_STEPS = 5  # of a training run, evenly from the first to the last
LONGEST_TRACED = 10_000  # characters of one text of a trace
CONTEXTS = {"train": "training", "test": "evaluation"}  # of the data sets of a report


@dataclass(slots=True, kw_only=True)
class Contents:
    """The contents of an execution's run beside its parameters and digests."""

    steps: list[Step] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # texts to look at beside the run, by their paths
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # to read in the UI
    data_sets: list[DatasetInput] = field(default_factory=list)
    traces: list[list[Attempt]] = field(default_factory=list)  # of each table of attempts
    summaries: list[Summary] = field(default_factory=list)
    missing: str = ""  # why none of these is there


def contents_of(execution: Execution) -> Contents:
    """Return the run's contents from an execution's files. Raises UserError if a file is missing or was changed since.

    For an unfinished execution: the curve so far.
    """
    tests = {path: digest for path, digest in execution.behind.items() if Path(path).stem == "test"}
    contents = Contents(data_sets=[_data_set(path, digest, "evaluation") for path, digest in tests.items()])
    if execution.status != "FINISHED":
        contents.steps += _curve_of(execution)
    else:
        READERS.get(execution.stage, _sft)(execution, contents)
    return contents


def _data_set(name: str, digest: str, context: str) -> DatasetInput:
    """Return a split as MLflow has it, with the shape of its file where that is here."""
    path = Path(name)
    profile: dict[str, str | int] = {"sha256": digest}
    schema = None
    if path.is_file() and sha256_of(path) == digest:
        footer = pq.read_metadata(path)
        types = {field.name: str(field.type) for field in footer.schema.to_arrow_schema()}
        profile |= {"num_rows": footer.num_rows, "bytes": path.stat().st_size}
        columns = [{"name": name, "type": kind, "required": True} for name, kind in types.items()]
        schema = json.dumps({"mlflow_colspec": columns})
    dataset = Dataset(
        name=f"{path.parent.name}/{path.stem}",
        digest=digest[:MAX_DATASET_DIGEST],
        source_type="local",
        source=json.dumps({"uri": name}),
        schema=schema,
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def _curve_of(execution: Execution) -> list[Step]:
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
        path = str(card_file.with_name(f"{split}.parquet"))
        contents.data_sets.append(_data_set(path, execution.outputs[path], split))
    _log(execution, contents, card.metrics())


def _difficulty(execution: Execution, contents: Contents) -> None:
    if not execution.record["params"]["difficulty"]["samples"]:
        return
    contents.data_sets += _splits(execution, "train", "difficulty")
    table = read_parquet(_file(execution, "difficulty.parquet"))
    counts = table.select(["right", "unverifiable", "samples"]).to_pylist()
    _log(execution, contents, rating_metrics([Rating(**row) for row in counts]))


def _sft(execution: Execution, contents: Contents) -> None:
    contents.steps += _curve_of(execution)
    contents.tables["metrics"] = _definitions(contents.steps)


def _train(execution: Execution, contents: Contents) -> None:
    contents.data_sets += _splits(execution, "train", "training")
    metrics, held_out = _file(execution, "metrics.parquet"), _file(execution, "held_out.parquet")
    contents.steps += _training_curve(execution, metrics, held_out)
    contents.tables["metrics"] = _definitions(contents.steps)
    folder = next(Path(path).parent for path in execution.outputs if Path(path).parent.name == "rollouts")
    last = read_parquet(
        metrics, columns=("step",)
    ).num_rows  # training.patience may have ended it before training.steps
    for step in evenly(range(1, last + 1), TRACED_STEPS):
        if (folder / step_file(step)).is_file():
            file = AttemptsFile(folder / step_file(step))
            table = with_texts(without_discarded(file.short))
            contents.traces += _traced(execution, table, partial(file.rows_of, table))


def _definitions(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Return name, meaning, unit and better direction of each recorded metric; a user's plug-in has no definition."""
    names = dict.fromkeys(name for step in steps for name in step.values)
    return [
        {"metric": metric_name(name), "meaning": each.meaning, "unit": each.unit, "better": each.better or ""}
        for name in names
        if (each := definition_of(name)) is not None
    ]


def _training_curve(execution: Execution, metrics: Path, held_out: Path) -> Iterator[Step]:
    """Yield the metrics of each step, its seconds and checks if made here, and the figures of held-out problems."""
    assert execution.ended is not None
    values: dict[int, dict[str, float]] = {}
    moments: dict[int, int] = {}
    for reported in _curve_of(execution):
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
    contents.data_sets += _splits(execution, "test", "evaluation")
    completions = read_parquet(_file(execution, "completions.parquet"))
    _log(execution, contents, {"completions": completions.num_rows})


def _score(execution: Execution, contents: Contents) -> None:
    result = read_object(_file(execution, "scores.json"))
    scores = read_parquet(_file(execution, "scores.parquet"))
    group, estimates = group_of(result["task"], oracle=result["oracle"]), estimates_of(result)
    bounds = {f"{name}_{bound}" for name in estimates for bound in ("low", "high")}
    figures = {name: value for name, value in metrics_to_log(result).items() if name not in bounds}
    _log(execution, contents, {f"{group}/{name}": value for name, value in figures.items()})
    for name, each in estimates.items():
        contents.tags[f"interval.{group}/{name}"] = f"{each.low:.4f} to {each.high:.4f}"
    contents.traces += _traced(execution, scores, lambda positions: scores.take(positions).to_pylist())


def _report(execution: Execution, contents: Contents) -> None:
    record, experiment = execution.record, execution.record["experiment"]
    read = [Path(path) for path in record["inputs"]]
    if missing := next((path for path in read if not path.is_file()), None):
        raise UserError(f"{missing} is missing: restore it with `dvc pull`")
    inputs = read_inputs(
        experiment,
        scores=[path for path in read if path.name == "scores.parquet"],
        summaries=[path for path in read if path.name == "scores.json"],
        metrics=[path for path in read if path.name == "metrics.parquet"],
        rollouts=[path for path in read if path.parent.name == "rollouts"],
        held_out=[path for path in read if path.name == "held_out.parquet"],
        choices=[path for path in read if path.name == "choice.json"],
        provenance=[path for path in read if path.name.endswith(PROVENANCE)],
    )
    times = times_of_seeds([path for path in read if path.name == "metrics.parquet"], LOGS / experiment)
    contents.summaries = summaries(inputs, record["params"], record.get("overrides", {}), times)
    _log(execution, contents, difference_metrics(contents.summaries[0].comparisons))
    digests = {path: digest for each in inputs.provenance for path, digest in read_object(each)["inputs"].items()}
    for path, digest in sorted(digests.items()):
        if path.startswith(f"data/{experiment}/") and Path(path).suffix == ".parquet" and Path(path).stem in CONTEXTS:
            contents.data_sets.append(_data_set(path, digest, CONTEXTS[Path(path).stem]))
    contents.files["report.html"] = _file(execution, "report.html").read_text()  # with its figures
    logged = LOGS / experiment / TIMES
    if execution.log is not None and logged.is_file():
        contents.files[TIMES] = logged.read_text()


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


def _splits(execution: Execution, split: str, context: str) -> list[DatasetInput]:
    inputs = execution.record["inputs"].items()
    return [_data_set(path, digest, context) for path, digest in inputs if Path(path).name == f"{split}.parquet"]


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
    "sample_kept": _sample,
    "validate": _sample,
    "score": _score,
    "report": _report,
}
