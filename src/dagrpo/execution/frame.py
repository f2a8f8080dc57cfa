"""The frame that every stage runs in: arguments, log, signals, errors, provenance, tracking.

A stage's work reads `job.input(...)`, writes `job.output(...)` and knows nothing of Snakemake, DVC or MLflow. A mistake of
the user ends it with one sentence; any other exception is a bug and keeps its traceback on the screen. The log has the
traceback of both.
"""

import argparse
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

from dagrpo.errors import UserError
from dagrpo.execution.ancestors import stop_with_the_workflow
from dagrpo.execution.declaration import Job, Stage
from dagrpo.execution.ending import Ending, Kind
from dagrpo.execution.failures import TRANSIENT, exit_code_of, sentence_of, words_of
from dagrpo.execution.identity import code_digest
from dagrpo.files import digest_of, read_json, sha256_of, write_json
from dagrpo.params.runtime import Runtime
from dagrpo.tracking.runs import StageRun, stage_run

STATES = Path(".state")
RAN = STATES / "ran"  # what ran and is not yet committed to DVC
logger = logging.getLogger(__name__)


class Terminated(SystemExit):
    """The stage was asked to stop (SIGTERM). Not an error of the stage: its run is closed as KILLED."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line that the rules write."""
    parser = argparse.ArgumentParser(prog="stage.py", description="Runs one stage of the DAG.")
    parser.add_argument("--job", type=Path, required=True, help="JSON: the stage, its params, the files of its code")
    parser.add_argument("--experiment", required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--runtime", type=Path, required=True, help="JSON with section runtime")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=PATH", help="may repeat a name")
    parser.add_argument("--output", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--attempt", type=int, help="given by the supervisor that starts this process")
    return parser.parse_args(arguments)


def declared(path: Path) -> dict[str, Any]:
    """The job file that the rules have written: stage, params and code. UserError: it is gone or damaged."""
    content = _own_json(path)
    if not isinstance(content, dict) or not {"stage", "params", "code"} <= content.keys():
        raise _damaged(path)
    return content


def runtime_of(path: Path) -> Runtime:
    """Section runtime as the rules have written it. UserError: the file is gone or damaged."""
    try:
        return Runtime.model_validate(_own_json(path))
    except ValidationError:
        raise _damaged(path) from None


def _own_json(path: Path) -> Any:
    try:
        return read_json(path)
    except UserError:
        raise _damaged(path) from None


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is gone or damaged: delete it and start Snakemake again, which writes it anew.")


def run(stage: Stage, options: argparse.Namespace) -> None:
    """Do a stage's work in this process. SystemExit after a sentence; other exceptions are bugs."""
    attempt = options.attempt or 1
    ending = Ending(stage, options.seed, options.log, attempt, rank())
    if rank() > 0:
        options.log = options.log.with_suffix(f".rank_{rank()}.log")
    elif attempt == 1:
        ending.forget()
    _log_to(options.log, append=attempt > 1)
    _listen_to_signals()
    stop_with_the_workflow()
    try:
        _execute(ending.watched(), options)
    except Exception as error:  # the border of the stage: told apart, logged, and raised again where it is a bug
        sentence = sentence_of(error)
        if sentence is None:
            logger.critical("a bug, not a mistake of yours", exc_info=error)
            ending.tell_bug(words_of(error))
            raise
        logger.exception(sentence)
        code = exit_code_of(error)
        ending.tell(Kind.CRASH if code == TRANSIENT else Kind.MISTAKE, sentence)
        raise SystemExit(code) from error
    except (KeyboardInterrupt, Terminated):
        logger.warning("stopped", exc_info=True)
        ending.tell_stopped()
        raise
    if rank() == 0:
        ending.forget()


def rank() -> int:
    """0, or the number that torchrun gives: of several processes only rank 0 records and reports."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def _execute(stage: Stage, options: argparse.Namespace) -> None:
    inputs = _grouped(options.input)
    outputs = {name: paths[0] for name, paths in _grouped(options.output).items()}
    runtime = runtime_of(options.runtime)
    record = _record(stage, options, inputs)

    def job(run: StageRun) -> Job:
        return Job(
            stage=stage.name,
            experiment=options.experiment,
            seed=options.seed,
            inputs=inputs,
            outputs=outputs,
            params=record["params"],
            runtime=runtime,
            state=state_folder(stage, record),
            log=options.log,
            run=run,
        )

    if rank() > 0:
        stage.work(job(StageRun(None)))
        return
    key = digest_of(_what_decides(record))
    whole = record | {"key": key, "runtime": runtime.model_dump()}
    with stage_run(whole | {"outputs": [str(path) for path in outputs.values()]}) as run:
        stage.work(job(run))
        digests = {str(path): sha256_of(path) for name, path in outputs.items() if name != "provenance"}
        write_json(outputs["provenance"], whole | {"outputs": digests})
        run.log_outputs(digests)
    _note_what_ran(outputs, key)


def _record(stage: Stage, options: argparse.Namespace, inputs: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """What the execution depends on, and whose it is. UserError names an input that is missing."""
    missing = [str(path) for paths in inputs.values() for path in paths if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]} is missing: run the stage that makes it first.")
    job = declared(options.job)
    return {
        "stage": stage.name,
        "experiment": options.experiment,
        "seed": options.seed,
        "params": job["params"],
        "code": code_digest(job["code"]),
        "inputs": {str(path): sha256_of(path) for paths in inputs.values() for path in paths},
    }


def _what_decides(record: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a record that decides the outputs."""
    return {name: value for name, value in record.items() if name != "experiment"}


def state_folder(stage: Stage, record: Mapping[str, Any]) -> Path:
    """Where resumable state lives: not an output, and never shared by jobs whose results differ before both have ended.

    How far to go (`Stage.extends`) is no part of it: more steps go on from the last state.
    """
    params = without(record["params"], stage.extends)
    return STATES / digest_of(_what_decides(record) | {"params": params})[:16]


def without(params: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Nested parameters less some dotted keys."""
    result = dict(params)
    for name in list(result):
        inner = [key.partition(".")[2] for key in keys if key.partition(".")[0] == name]
        if "" in inner:
            del result[name]
        elif inner:
            result[name] = without(result[name], inner)
    return result


def dvc_drives() -> bool:
    """Whether DVC runs this stage, and so records its outputs itself."""
    return "DVC_STAGE" in os.environ


def _note_what_ran(outputs: Mapping[str, Path], key: str) -> None:
    """Tell the workflow which outputs are new, so that it commits those, and only those, to DVC."""
    if dvc_drives():
        return
    names = [str(path) for path in outputs.values()]
    entry = {"outputs": names, "provenance": str(outputs["provenance"]), "key": key}
    write_json(RAN / f"{digest_of(names)[:16]}.json", entry)


def _grouped(pairs: Sequence[str]) -> dict[str, list[Path]]:
    grouped: dict[str, list[Path]] = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        grouped.setdefault(name, []).append(Path(path))
    return grouped


def _log_to(path: Path, *, append: bool) -> None:
    """One log per job; an attempt after a crash goes on below the one before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path,
        filemode="a" if append else "w",
        level=logging.INFO,
        force=True,  # whatever a library has set up on import
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.captureWarnings(True)  # of libraries: they go to the log, not between the lines of the screen


def _listen_to_signals() -> None:
    """SIGTERM ends the stage as an exception; Ctrl-C too, where the command line had it end the process at once."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated(128 + signum)
