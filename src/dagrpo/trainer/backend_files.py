"""Files between a training run and a backend's own program."""

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from dagrpo.checkpoints.kept import select
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.store import save_weights
from dagrpo.checkpoints.tensors import CastTensors, Tensors
from dagrpo.core.errors import TransientError, UserError
from dagrpo.evaluation.held_out_table import HELD_OUT
from dagrpo.trainer.run import Report, TrainingRun
from dagrpo.utils.files import write_json
from dagrpo.utils.tables import write_parquet
from dagrpo.utils.watched_process import WatchedProcess

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_END = 20.0  # after SIGTERM
SHARD_BYTES = 1_000_000_000  # most bytes of weights in a file of the trained checkpoint: checkpoint.max_shard_bytes
MISTAKE = 65  # exit code of a program whose user has to change something (EX_DATAERR)
Metrics = Mapping[str, float]


def write_job(run: TrainingRun, path: Path) -> None:
    """Write everything that a program needs to train: paths of the inputs, seed and sections of parameters, as JSON."""
    paths = {name: getattr(run, name) for name in ("initial", "teacher", "state")}
    sections = {name: getattr(run, name) for name in ("rollout", "reward", "algorithm", "training", "runtime")}
    write_json(
        path,
        {
            "seed": run.seed,
            "train_splits": {task: str(path.resolve()) for task, path in run.train_splits.items()},
            "shares": dict(run.shares),
            "passages": [str(path.resolve()) for path in run.passages],
            **{name: None if each is None else str(each.resolve()) for name, each in paths.items()},
            **{name: section.model_dump(mode="json") for name, section in sections.items()},
        },
    )


def one_step(row: Mapping[str, float]) -> tuple[int, Metrics]:
    """Return step and metrics of a line of the usual form, `{"step": 1, "reward/mean": 0.25}`."""
    return int(row["step"]), {name: float(value) for name, value in row.items() if name != "step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program that trains, appends a line of JSON to `metrics` after each step, and writes its output to `log`."""

    command: Sequence[str]
    metrics: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    read: Callable[[Any], tuple[int, Metrics]] = one_step  # step and metrics of a line; steps below 1 are left out
    silent_seconds: float = math.inf  # longest time without a new line
    last_step: int = 0  # whose line is waited for after a good end, `patience` seconds at most
    patience: float = 0.0

    def run(self, report: Report, before: Sequence[Metrics] = ()) -> list[Metrics]:
        """Run it, and return the metrics of all its steps, after those of the steps `before`.

        Each step is reported at once, also those before. The program and all that it has started end with this call. Raises
        UserError if it exits with MISTAKE, TransientError if it ends in any other way but success, or is silent for too long.
        """
        rows: list[Metrics] = []
        for row in before:
            rows.append(row)
            report(len(rows), row)
        with tempfile.TemporaryDirectory() as scratch:
            process = WatchedProcess(self.command, environment=self.environment, log=self.log, scratch=Path(scratch))
            try:
                for step, row in filter(lambda each: each[0] > 0, self._followed(process)):
                    assert step == len(rows) + 1, f"{self.metrics} has step {step} after {len(rows)} steps"
                    rows.append(row)
                    report(step, row)
                self._require_success(process.exit_code() or 0)
            finally:
                process.end(SECONDS_TO_END)
        return rows

    def _require_success(self, code: int) -> None:
        if code == MISTAKE:
            raise UserError(
                f"{self.command[0]} refuses this run (exit code {MISTAKE}): see {self.log} for the reason, and fix it."
            )
        if code:
            raise TransientError(ended(self.command[0], code, self.log))

    def _followed(self, process: WatchedProcess) -> Iterator[tuple[int, Metrics]]:
        """Yield step and metrics of each line of the file as the program appends it, until the program has ended."""
        read, step, heard, until = 0, 0, time.monotonic(), math.inf
        while True:
            if until == math.inf and (code := process.exit_code()) is not None:
                until = time.monotonic() + (0.0 if code else self.patience)
            content = self.metrics.read_bytes()[read:] if self.metrics.is_file() else b""
            whole = content[: content.rfind(b"\n") + 1]  # a program that is killed leaves half a line
            read += len(whole)
            heard = time.monotonic() if whole else heard
            for line in whole.splitlines():
                step, row = self.read(json.loads(line))
                yield step, row
            if until < math.inf and (step >= self.last_step or time.monotonic() >= until):
                return
            if time.monotonic() - heard > self.silent_seconds:
                raise TransientError(
                    f"{self.command[0]} has written nothing to {self.metrics} for {self.silent_seconds / 60:g} minutes: see {self.log}."
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)


def ended(what: str, code: int, log: Path | str) -> str:
    """Return the sentence on a program that has not ended well."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{what} {how}: see {log}."


def run_program(command: Sequence[str], metrics: Path, log: Path, report: Report) -> list[Metrics]:
    """Run a program that keeps the lines of former steps when it resumes, and return the metrics of its steps."""
    return Program(command=command, metrics=metrics, log=log).run(report)


def take_checkpoint(run: TrainingRun, folder: Path) -> None:
    """Write the weights in a folder, of the Hugging Face layout or another known one, as the policy."""
    take_weights(run, open_tensors(folder), folder)


def take_weights(run: TrainingRun, trained: Tensors, folder: Path) -> None:
    """Write the trained weights as the policy: files and format of the initial checkpoint, and its dtype.

    `saved_in` of the run's facts is the dtype that they had. Raises UserError if `trained`, which is in `folder`, has other tensors.
    """
    initial = open_tensors(run.initial)
    shapes = {name: spec.shape for name, spec in trained.specs.items()}
    if shapes != {name: spec.shape for name, spec in initial.specs.items()}:
        odd = sorted(set(shapes) ^ set(initial.specs)) or sorted(shapes)
        raise UserError(f"{folder} has other tensors than the initial checkpoint, such as {odd[0]}.")
    floating = {spec.dtype for spec in initial.specs.values() if spec.dtype.is_floating_point}
    dtype = next(iter(floating), torch.float32)
    saved = {str(spec.dtype).removeprefix("torch.") for spec in trained.specs.values()}
    run.facts["saved_in"] = ", ".join(sorted(saved))
    save_weights(CastTensors(trained, dtype), dtype, run.initial, run.policy)


def write_tables(run: TrainingRun, metrics: Sequence[Metrics]) -> None:
    """Write the metrics that all steps have, null for a step that has none; the tables of rollouts and held-out answers stay empty,
    and no policy is kept but the last."""
    assert len(metrics) == run.training.steps, f"{len(metrics)} of {run.training.steps} steps have metrics"
    names = sorted(set.intersection(*(set(row) for row in metrics if row)))
    columns = {name: pa.array([row.get(name) for row in metrics], pa.float64()) for name in names}
    write_parquet(run.metrics, pa.table({"step": pa.array(range(1, len(metrics) + 1), pa.int32()), **columns}))
    run.rollouts.parent.mkdir(parents=True, exist_ok=True)
    write_json(run.rollouts, {"files": {}})
    write_parquet(run.held_out, HELD_OUT.empty_table())
    select(run.state, run.initial, [], run.kept.parent)
