"""Frame of every stage: arguments, log, signals, errors, provenance, tracking.

A stage's work reads `job.input(...)`, writes `job.output(...)` and knows nothing of Snakemake, DVC or MLflow. A mistake of
the user ends it with one error message; any other exception is a bug and keeps its traceback on the screen. The log has the
traceback of both.
"""

import argparse
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import Any

from dagrpo.core.errors import Terminated, UserError
from dagrpo.core.redaction import RedactingFormatter
from dagrpo.pipeline.cache import FINISHED, cache_hit, is_made, keep_finished, restored, waiting_for_equal_job
from dagrpo.pipeline.declaration import Job, Shared, Stage, threads_of
from dagrpo.pipeline.failure_report import FailureReport, Kind
from dagrpo.pipeline.override_runs import TRY
from dagrpo.pipeline.raw_inputs import raw_recorded
from dagrpo.pipeline.record import (
    STATES,
    broken_file,
    configuration_of,
    inputs_of,
    makers_of,
    outputs_of,
    parts_of,
    record_of,
    runtime_of,
    state_folder,
)
from dagrpo.pipeline.snakemake_private import record_unfinished
from dagrpo.pipeline.tracker import tracker
from dagrpo.utils.failures import MISTAKE, TRANSIENT, exit_code_of, no_room, place_of, sentence_of, words_of
from dagrpo.utils.files import copy, digest_of, read_json, replace_folder, sha256_of, share, write_json
from dagrpo.utils.manifest import MANIFEST, fault_of, noted_sha256
from dagrpo.utils.run_info import Stopwatch, name_provenance, write_account
from dagrpo.utils.watchdog import stop_with_the_workflow

RAN = STATES / "ran"  # a folder per experiment: what ran and is not yet committed to DVC
_DECLARED = frozenset({MANIFEST, "provenance.json"})
logger = logging.getLogger(__name__)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line that the rules write."""
    parser = argparse.ArgumentParser(prog="stage.py", description="Runs one stage of the DAG.")
    parser.add_argument("--job", type=Path, required=True, help="JSON: the stage, its params, the files of its code")
    parser.add_argument("--experiment", required=True, help="name of its folders")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--runtime", type=Path, required=True, help="JSON with section runtime")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=PATH", help="may repeat a name")
    parser.add_argument("--output", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--overrides", type=Path, help="JSON with what an override run changes, by dotted key")
    parser.add_argument("--configuration", type=Path, help="JSON about the whole experiment, for its record")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--attempt", type=int, help="given by the supervisor that starts this process")
    parser.set_defaults(taken_from=None, part="")  # the provenance.json of a cache hit's original; the value of a part
    return parser.parse_args(arguments)


def run(stage: Stage, options: argparse.Namespace) -> None:
    """Do a stage's work in this process. Raises SystemExit after an error message; other exceptions are bugs."""
    attempt = options.attempt or 1
    report = FailureReport(stage, options.seed, options.log, attempt, rank())
    if rank() > 0:
        options.log = options.log.with_suffix(f".rank_{rank()}.log")
    elif attempt == 1:
        report.remove()
    _log_to(options.log, append=attempt > 1)
    _listen_to_signals()
    stop_with_the_workflow()
    try:
        _execute(stage, options, report)
    except Exception as error:  # the outermost level of a stage: log every error, and raise bugs again
        _note_for_launcher(error)
        damage = damage_found(options) if rank() == 0 else None
        sentence = damage or sentence_of(error)
        if sentence is None:
            logger.critical("a bug in %s", place_of(error), exc_info=error)
            report.record_bug(words_of(error), place_of(error))
            raise
        logger.exception(sentence)
        code = MISTAKE if damage else exit_code_of(error)
        report.record(Kind.CRASH if code == TRANSIENT else Kind.MISTAKE, sentence)
        raise SystemExit(code) from error
    except (KeyboardInterrupt, Terminated):
        logger.warning("stopped", exc_info=True)
        report.record_stop()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt the clean-up
        raise
    if rank() == 0:
        report.remove()


def damage_found(options: argparse.Namespace) -> str | None:
    """Return an error message about the first damaged input of a failed stage; None if all are intact. Reads all inputs.

    Snakemake and DVC compare times and sizes, and would treat a damaged input as up to date. So the job that made it is recorded as
    unfinished for Snakemake, and its time is set to now, so that DVC looks into it.
    """
    found, inputs = list[str](), [path for paths in inputs_of(options).values() for path in paths]
    for path, (digest, provenance) in makers_of(options.experiment, inputs).items():
        try:
            file = broken_file(path, digest, fault_of)
        except (OSError, UserError):  # unreadable
            file = path
        if file is not None:
            with suppress(OSError):  # on a full disk the message must still be shown
                record_unfinished(provenance)
                os.utime(file)
            found.append(
                f"{file} is damaged, or was changed after it was made ({provenance} says so): started again, the same command makes "
                "it anew; if the change is yours, copy it away first."
            )
    return found[0] if found else None


def _note_for_launcher(error: Exception) -> None:
    """Write an error to the file in which the launcher looks for the last one of each rank, if there is a launcher."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def rank() -> int:
    """Return the launcher's rank, or 0 without one; only rank 0 records and reports."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def _execute(stage: Stage, options: argparse.Namespace, report: FailureReport) -> None:
    """Do the work of each part, unless its outputs are there or a cache hit. Journal entries come last: DVC records whole jobs."""
    records = []
    with Shared() as shared:
        for part in parts_of(options):
            if stage.spreads and is_made(stage, part):
                records.append((part, _keep_made(stage, part)))
                continue
            with waiting_for_equal_job(stage, part) if stage.spreads else nullcontext():
                linking = cache_hit(stage, part) if stage.spreads else None
                records.append((part, _execute_part(linking or stage, part, shared, report)))
    for part, record in records if rank() == 0 else ():
        _note_part(part, record)
        if stage.spreads:
            shutil.rmtree(state_folder(stage, record) / FINISHED, ignore_errors=True)


def keep_all(stage: Stage, options: argparse.Namespace) -> None:
    """Bring the records of a job up to date whose outputs are made already."""
    for part in parts_of(options) if stage.spreads else ():
        _note_part(part, _keep_made(stage, part))


def _note_part(options: argparse.Namespace, record: Mapping[str, Any]) -> None:
    outputs = outputs_of(options)
    note_outputs([str(path) for path in outputs.values()], outputs["provenance"], record)


def _keep_made(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of outputs that are made already. Their provenance.json gets the inputs of now, which differ where unread."""
    record, provenance = record_of(stage, options), outputs_of(options)["provenance"]
    former = read_json(provenance)
    if former["inputs"] != record["inputs"]:
        digest = sha256_of(provenance)
        write_json(provenance, former | {"inputs": record["inputs"]})
        name_provenance(_own_log(options), digest, provenance)
    return record


def _own_log(options: argparse.Namespace) -> Path:
    log: Path = options.log
    return log.with_suffix(f".{options.part}.log") if options.part else log


def _execute_part(stage: Stage, options: argparse.Namespace, shared: Shared, report: FailureReport) -> dict[str, Any]:
    inputs, outputs = inputs_of(options), outputs_of(options)
    stopwatch = Stopwatch(Path.cwd())
    runtime = runtime_of(options.runtime)
    threads = threads_of(stage, runtime)
    record = record_of(stage, options)
    if stage.spreads and restored(state_folder(stage, record), outputs):
        return record

    job = Job(
        stage=stage.name,
        experiment=options.experiment,
        overrides=record["overrides"],
        seed=options.seed,
        inputs=inputs,
        outputs=outputs,
        params=record["params"],
        runtime=runtime,
        threads=threads,
        state=state_folder(stage, record),
        log=options.log,
        shared=shared,
    )
    report.state = job.state
    if rank() > 0:
        stage.work(job)
        return record
    whole = record | {"runtime": runtime.model_dump(), "threads": threads}
    if options.taken_from is not None:  # a cache hit has what the original was made with
        source = read_json(options.taken_from)
        made_with = {name: source[name] for name in ("runtime", "threads", "facts") if name in source}
        whole |= made_with | {"taken_from": str(options.taken_from)}
    recorded = whole | {"outputs": [str(path) for path in outputs.values()]}
    configuration = configuration_of(options)
    records = tracker()
    noted = nullcontext("") if records is None else records.noted(recorded, configuration, stopwatch.facts, options.log)
    with noted as note:
        with _rollback(outputs.values()):
            former = {path: _version(path) for path in outputs.values()}
            stage.work(job)
            _require_unchanged(stage, record)
            if options.taken_from is None:
                _require_written(stage, outputs, former)
            digests = {str(path): sha256_of(path) for name, path in outputs.items() if name != "provenance"}
            facts = {"facts": job.facts} if job.facts else {}
            write_json(outputs["provenance"], whole | facts | {"outputs": digests})
        is_taken_over = options.taken_from is not None
        account = stopwatch.account(stage.name, options.seed, options.attempt or 1, is_taken_over=is_taken_over)
        write_account(_own_log(options), outputs["provenance"], account, configuration, note)
    if stage.spreads:
        keep_finished(job.state, outputs)
    return record


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what any new content of a file changes; None if the file is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _require_unchanged(stage: Stage, record: Mapping[str, Any]) -> None:
    """Raise UserError for a raw file that was written to meanwhile: the record has the digest of before."""
    for path, digest in raw_recorded(record["inputs"], record["experiment"]).items():
        if not Path(path).is_file() or noted_sha256(Path(path)) != digest:
            raise UserError(
                f"{path} changed while the stage {stage.name} read it: run again when nothing writes to it."
            )


def _require_written(
    stage: Stage, outputs: Mapping[str, Path], former: Mapping[Path, tuple[int, int, int] | None]
) -> None:
    """Raise UserError for an output that the stage has not written: one of an earlier execution would be recorded as its own."""
    for name, path in outputs.items():
        if name != "provenance" and _version(path) in (None, former[path]):
            raise UserError(
                f"the stage {stage.name} has not written its output {name} ({path}): write it in `work`, or take it out of the "
                "stage's outputs."
            )


def dvc_drives() -> bool:
    """Return True if DVC runs this stage, and so records its outputs itself."""
    return "DVC_STAGE" in os.environ


def note_outputs(outputs: Sequence[str], provenance: Path, record: Mapping[str, Any]) -> None:
    """List the new outputs for the workflow, which commits only those to DVC. Does nothing for an override run."""
    if dvc_drives() or TRY in record["experiment"]:
        return
    entry = {"outputs": outputs, "provenance": str(provenance), "key": record["key"]}
    write_json(RAN / record["experiment"] / f"{digest_of(sorted(outputs))[:16]}.json", entry)


def _log_to(path: Path, *, append: bool) -> None:
    """Open the job's single log; an attempt after a crash appends to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not append:
        path.write_bytes(b"")
    handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)  # in the place of a library's handlers
    logging.captureWarnings(True)  # of libraries: they go to the log, not between the lines of the screen


class _LogFile(logging.FileHandler):
    """A log that ignores a full disk: other writes to that disk fail too, and their error is reported."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if error is None or not no_room(error):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # buffered lines
            super().close()


def _listen_to_signals() -> None:
    """Raise an exception on SIGTERM; on Ctrl-C too, if the command line had it end the process at once."""

    def terminate(signum: int, frame: FrameType | None) -> None:
        raise Terminated(128 + signum)

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _repeat_lost_signal


def _repeat_lost_signal(lost: "sys.UnraisableHookArgs") -> None:
    """Send a signal to stop again where its exception was raised in a destructor, in which Python prints and drops it."""
    if isinstance(lost.exc_value, KeyboardInterrupt | Terminated):
        number = signal.SIGINT if isinstance(lost.exc_value, KeyboardInterrupt) else signal.SIGTERM
        Timer(0.1, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(lost)


@contextmanager
def _rollback(outputs: Iterable[Path]) -> Iterator[None]:
    """Restore the folders of checkpoints if the work inside fails after replacing some of their files.

    Snakemake restores the files that the rules declare, which of a checkpoint is its manifest.json alone.
    """
    folders = [path.parent for path in outputs if path.name == MANIFEST]
    backups = {folder: folder.with_name(f".{folder.name}.kept") for folder in folders}
    for folder, backup in backups.items():
        shutil.rmtree(backup, ignore_errors=True)  # of a run that was killed
        for file in folder.rglob("*") if (folder / MANIFEST).exists() else ():
            if file.is_file():
                second = backup / file.relative_to(folder)
                second.parent.mkdir(parents=True, exist_ok=True)
                (copy if file.name in _DECLARED else share)(file, second)  # Snakemake writes to those
    try:
        yield
    except BaseException:
        for folder, backup in backups.items():
            if backup.exists():
                replace_folder(backup, folder)
        raise
    finally:
        for backup in backups.values():
            shutil.rmtree(backup, ignore_errors=True)
