"""The frame every stage runs in: arguments, errors, signals, provenance, tracking.

A script in workflow/scripts is `main("convert", work)` where `work(stage)` reads `stage.input(...)`, writes
`stage.output(...)` and knows nothing of Snakemake, DVC or MLflow. A mistake of the user (UserError, OSError) ends
the stage with one sentence and exit code 1; every other exception is a bug and keeps its traceback.
"""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from dagrpo.ancestors import stop_with_the_workflow
from dagrpo.code import code_digest
from dagrpo.errors import UserError
from dagrpo.files import digest_of, sha256_of, write_json
from dagrpo.params.base import Section
from dagrpo.tracking.runs import StageRun, stage_run

SectionType = TypeVar("SectionType", bound=Section)


class Terminated(SystemExit):
    """The stage was asked to stop (SIGTERM). Not an error of the stage: its run is closed as KILLED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one execution of a stage is given: files, parameters, and the run that records it."""

    name: str
    experiment: str
    seed: int | None  # None for stages that all seeds share
    inputs: Mapping[str, Sequence[Path]]
    outputs: Mapping[str, Path]
    params: Mapping[str, Any]
    key: str  # digest of parameters, seed, code and inputs: what this execution depends on
    log: Path  # the stage's log file; logs of what it starts go beside it
    run: StageRun

    def input(self, name: str) -> Path:
        """The one input of that name."""
        (path,) = self.inputs[name]
        return path

    def output(self, name: str) -> Path:
        """The path to write. A checkpoint folder is named by its manifest.json."""
        return self.outputs[name]

    def section(self, kind: type[SectionType], dotted: str) -> SectionType:
        """A section of params.yaml, such as `rollout.engine`, checked again here."""
        values: Any = self.params
        for part in dotted.split("."):
            values = values[part]
        return kind.model_validate(values)

    def state_folder(self) -> Path:
        """Where resumable state lives: not an output, and never shared between two different configurations."""
        return Path(".state") / self.key[:16]


def main(name: str, work: Callable[[Stage], None], arguments: Sequence[str] | None = None) -> None:
    """Run one stage from its command line and exit 0, or 1 with a sentence."""
    options = _parse(name, arguments)
    if _process_number() > 0:
        options.log = options.log.with_suffix(f".process_{_process_number()}.log")
    _log_to(options.log)
    signal.signal(signal.SIGTERM, _terminate)
    stop_with_the_workflow()
    try:
        _execute(name, work, options)
    except (UserError, OSError) as error:
        _fail(name, error)


def _execute(name: str, work: Callable[[Stage], None], options: argparse.Namespace) -> None:
    inputs = _grouped(options.input)
    outputs = {key: paths[0] for key, paths in _grouped(options.output).items()}
    params = json.loads(options.params)
    missing = [str(path) for paths in inputs.values() for path in paths if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]} is missing: run the stage that makes it first.")
    input_digests = {str(path): sha256_of(path) for paths in inputs.values() for path in paths}
    record: dict[str, Any] = {
        "stage": name,
        "experiment": options.experiment,
        "seed": options.seed,
        "params": params,
        "code": code_digest(name),
        "inputs": input_digests,
    }
    key = digest_of({k: v for k, v in record.items() if k != "experiment"})

    def stage_of(run: StageRun) -> Stage:
        return Stage(
            name=name,
            experiment=options.experiment,
            seed=options.seed,
            inputs=inputs,
            outputs=outputs,
            params=params,
            key=key,
            log=options.log,
            run=run,
        )

    if _process_number() > 0:
        work(stage_of(StageRun(None)))
        return
    with stage_run(record | {"key": key, "outputs": [str(p) for p in outputs.values()]}) as run:
        work(stage_of(run))
        produced = {k: p for k, p in outputs.items() if k != "provenance"}
        output_digests = {str(path): sha256_of(path) for path in produced.values()}
        write_json(outputs["provenance"], record | {"key": key, "outputs": output_digests})
        run.log_outputs(output_digests)
    _note_what_ran(outputs, key)


def _process_number() -> int:
    """0, or the number that torchrun gives: of several processes only the first one records and reports."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def _note_what_ran(outputs: Mapping[str, Path], key: str) -> None:
    """Tell the workflow which outputs are new, so that it commits those, and only those, to DVC."""
    if "DVC_STAGE" in os.environ:  # DVC runs this stage and records its outputs itself
        return
    names = [str(path) for path in outputs.values()]
    entry = {"outputs": names, "provenance": str(outputs["provenance"]), "key": key}
    write_json(Path(".state/ran") / f"{digest_of(names)[:16]}.json", entry)


def _parse(name: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--experiment", required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--params", required=True, help="the stage's own sections of params.yaml, as JSON")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=PATH", help="may repeat a name")
    parser.add_argument("--output", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--log", type=Path, required=True)
    return parser.parse_args(arguments)


def _grouped(pairs: Sequence[str]) -> dict[str, list[Path]]:
    grouped: dict[str, list[Path]] = {}
    for pair in pairs:
        key, _, path = pair.partition("=")
        grouped.setdefault(key, []).append(Path(path))
    return grouped


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path, filemode="w", level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    sys.excepthook = _log_bug


def _log_bug(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("a bug, not a mistake of yours", exc_info=(kind, error, traceback))
    sys.__excepthook__(kind, error, traceback)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated(128 + signum)


def _fail(name: str, error: UserError | OSError) -> None:
    sentence = str(error)
    if isinstance(error, OSError) and error.strerror:
        sentence = (
            f"{error.filename or 'a file'}: {error.strerror}: make room or correct its permissions, then run again."
        )
    logging.getLogger(__name__).error(sentence)
    if _process_number() == 0:
        print(f"{name}: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(1) from error
