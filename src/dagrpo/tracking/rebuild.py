"""The history of runs made anew from provenance and metrics, where there is none: in a clone that has pulled its results.

Each provenance.json becomes a record, delivered as that of any stage. What MLflow holds already is left alone, so that
this may be done again, and adds only what is missing. Times are those of the files, moved on where these do not follow
the DAG; who made them, and on which machine, the files do not say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dagrpo.console import say
from dagrpo.errors import UserError
from dagrpo.evaluation.held_out import figures as held_out_figures
from dagrpo.evaluation.outcomes import group_of
from dagrpo.evaluation.scoring import estimates_of, metrics_to_log
from dagrpo.execution.record import PROVENANCE, TOPS, provenances_of
from dagrpo.files import read_object, read_parquet, sha256_of
from dagrpo.params.overlay import merged
from dagrpo.params.runtime import Runtime
from dagrpo.params.schema import parse
from dagrpo.provenance.mlflow_runs import past_executions
from dagrpo.provenance.records import read_execution
from dagrpo.report.history import findings, pages, recorded_curves
from dagrpo.report.inputs import read_inputs
from dagrpo.report.times import times_of_seeds
from dagrpo.rollout.table import without_discarded
from dagrpo.tracking.attempts import traced_steps
from dagrpo.tracking.behind import behind
from dagrpo.tracking.delivery import last_trouble, settle
from dagrpo.tracking.journal import Journal
from dagrpo.tracking.runs import EVALUATION, StageRun
from dagrpo.tracking.store import artifact_location, require_answer, require_usable, tracking_uri, without_password
from dagrpo.tracking.variations import TRY, variation_name
from dagrpo.trainer.run import step_file
from dagrpo.workflow.jobs import configuration_of

SECONDS = 3600.0
HELD_OUT_FILE = "held_out.parquet"
STEP = "step"
ORDER = ("model", "teacher", "prepare", "sft", "difficulty", "convert", "train", "export", "sample", "score", "report")
TRACES = Runtime().traces
Record = Mapping[str, Any]


def rebuild(root: Path) -> int:
    """Record what the folders of results hold and MLflow does not; how many executions that were.

    UserError: MLflow cannot take them now.
    """
    uri = tracking_uri(root)
    require_usable(uri)
    require_answer(uri)
    known = {(past.experiment, past.key, past.outputs) for past in past_executions(root)}
    count = 0
    for folder in _folders(root):
        files = sorted(provenances_of(folder), key=_place)
        configuration = _configuration([read_object(path) for path in files])
        time_ms = 0
        for path in files:
            execution = read_execution(path)
            time_ms = max(time_ms + 1, path.stat().st_mtime_ns // 1_000_000)
            if (folder.partition(TRY)[0], execution.key, execution.outputs) not in known:
                _record(root, path, configuration, time_ms)
                count += 1
    if not settle(root, SECONDS):
        raise UserError(f"MLflow does not hold everything yet: {last_trouble(root)}")
    return count


def _folders(root: Path) -> list[str]:
    """The names of all folders of experiments and tries."""
    return sorted({path.name for top in TOPS for path in (root / top).glob("*") if path.is_dir()})


def _configuration(records: list[Record]) -> dict[str, Any]:
    """What a run of the workflow would say of the whole experiment; nothing where the schema has changed since."""
    values: dict[str, Any] = {}
    for record in records:
        values = merged(values, record["params"])
    if records:
        values = merged(values, {"experiment": {"name": records[0]["experiment"].partition(TRY)[0]}})
    try:
        return configuration_of(parse(values, PROVENANCE))
    except UserError:
        return {}


def _place(provenance: Path) -> int:
    """Where its stage stands in the DAG: files that were pulled say nothing of their order."""
    stage = str(read_object(provenance).get("stage"))
    return ORDER.index(stage) if stage in ORDER else len(ORDER)


def _record(root: Path, provenance: Path, configuration: Mapping[str, Any], time_ms: int) -> None:
    """The journal that the stage would have written."""
    record = read_object(provenance)
    outputs = record["outputs"]
    uri = tracking_uri(root)
    start = {
        "record": {**record, "outputs": [*outputs, str(provenance)]},
        "uri": without_password(uri),
        "artifacts": artifact_location(uri, root),
        "tags": {f"version.{name}": str(value) for name, value in record.get("environment", {}).items()}
        | {"rebuilt": "from provenance.json"},
        "variation": variation_name(record["experiment"]),
        "configuration": dict(configuration),
        "behind": behind(record["inputs"]),
    }
    run = StageRun(Journal.begin(root, record["stage"], start, clock=lambda: time_ms))
    try:
        _log_figures(run, record)
    except UserError as error:
        say(f"{provenance}: recorded without figures: {error}")
    run.log_outputs(outputs)
    run.end("FINISHED")


def _log_figures(run: StageRun, record: Record) -> None:
    """The figures of the stages whose files have them. UserError: a file is missing, or is not what the stage has written."""
    files = {Path(path).name: path for path in record["outputs"]}
    if record["stage"] == "train":
        for row in pq.read_table(_as_made(record, files["metrics.parquet"])).to_pylist():
            run.log_metrics({name: value for name, value in row.items() if name != STEP}, row[STEP])
        if HELD_OUT_FILE in files:
            table = read_parquet(_as_made(record, files[HELD_OUT_FILE]))
            for step, values in held_out_figures(table.to_pylist()).items():
                run.log_metrics(values, step)
        _log_rollouts(run, record)
    elif record["stage"] == "sample":
        _log_test(run, record)
    elif record["stage"] == "score":
        result = read_object(_as_made(record, files["scores.json"]))
        group = group_of(result["task"], oracle=result.get("oracle", False))
        bounds = {f"{name}_{bound}" for name in estimates_of(result) for bound in ("low", "high")}
        figures = {name: value for name, value in metrics_to_log(result).items() if name not in bounds}
        run.log_metrics({f"{group}/{name}": value for name, value in figures.items()})
        scores = _as_made(record, files["scores.parquet"])
        run.log_attempts(read_parquet(scores), TRACES)
    elif record["stage"] == "report":
        _log_report(run, record, _as_made(record, files["report.html"]))


def _log_test(run: StageRun, record: Record) -> None:
    """The problems that were answered, where their file is here and as it was."""
    for name, digest in record["inputs"].items():
        path = Path(name)
        if path.name == "test.parquet" and path.is_file() and sha256_of(path) == digest:
            run.log_dataset(path, f"{path.parent.name}/test", digest, EVALUATION)


def _log_rollouts(run: StageRun, record: Record) -> None:
    """Attempts of some steps, where the rollouts are here: they are the largest of what a run makes."""
    folder = next(Path(path).parent for path in record["outputs"] if Path(path).parent.name == "rollouts")
    for step in traced_steps(record["params"]["training"]["steps"]):
        file = folder / step_file(step)
        if file.is_file():
            run.log_attempts(without_discarded(read_parquet(file)), TRACES)


def _log_report(run: StageRun, record: Record, html: Path) -> None:
    """The report itself, and what the runs of its seeds say."""
    read = [Path(path) for path in record["inputs"]]
    metrics = [path for path in read if path.name == "metrics.parquet"]
    inputs = read_inputs(
        record["experiment"],
        scores=[path for path in read if path.name == "scores.parquet"],
        summaries=[path for path in read if path.name == "scores.json"],
        metrics=metrics,
        rollouts=[path for path in read if path.parent.name == "rollouts"],
        held_out=[path for path in read if path.name == HELD_OUT_FILE],
        provenance=[path for path in read if path.name.endswith(PROVENANCE)],
    )
    run.log_artifact(html)
    found = findings(inputs, record["params"], record.get("overrides", {}))
    times = times_of_seeds(metrics, Path("logs", record["experiment"]))
    for seed, page in pages(found, times).items():
        run.log_page(seed, page, recorded_curves(inputs, seed))


def _as_made(record: Record, path: str) -> Path:
    """UserError: it is gone, or has been changed."""
    if not Path(path).is_file() or sha256_of(Path(path)) != record["outputs"][path]:
        raise UserError(f"{path} is missing or was changed: `dvc pull` brings it back")
    return Path(path)
