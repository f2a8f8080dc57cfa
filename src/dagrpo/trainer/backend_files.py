"""Files between a training run and a backend's own program."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from dagrpo.checkpoints.manifest import read_manifest
from dagrpo.core.errors import TransientError, UserError
from dagrpo.evaluation.held_out_table import HELD_OUT
from dagrpo.trainer.run import Report, TrainingRun
from dagrpo.utils.files import write_json
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tables import write_parquet

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_END = 20.0  # after SIGTERM
SHARD_BYTES = 1_000_000_000  # most bytes of weights in a file of the trained checkpoint: checkpoint.max_shard_bytes
MISTAKE = 65  # exit code of a program whose user has to change something (EX_DATAERR)
Metrics = Mapping[str, float]


def write_job(run: TrainingRun, path: Path) -> None:
    """Write everything that a program needs to train: paths of the inputs, seed and sections of parameters, as JSON."""
    paths = {name: getattr(run, name) for name in ("initial", "train_split", "passages", "teacher", "state")}
    sections = {name: getattr(run, name) for name in ("rollout", "reward", "algorithm", "training", "runtime")}
    write_json(
        path,
        {
            "seed": run.seed,
            **{name: None if each is None else str(each.resolve()) for name, each in paths.items()},
            **{name: section.model_dump(mode="json") for name, section in sections.items()},
        },
    )


def run_program(command: Sequence[str], metrics: Path, log: Path, report: Report) -> list[Metrics]:
    """Run a program that trains, and return the metrics of its steps.

    It appends a line of JSON to the file `metrics` after each step, `{"step": 1, "reward/mean": 0.25}`, which is reported at
    once; a program that resumes keeps the lines of former steps. Its output goes to `log`. Raises UserError if it exits with
    MISTAKE, TransientError if it ends in any other way but success: the stage is then started again.
    """
    rows: list[Metrics] = []
    with log.open("ab") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as program:
        try:
            for row in _followed(metrics, program):
                step = int(row["step"])
                assert step == len(rows) + 1, f"{metrics} has step {step} after {len(rows)} steps"
                rows.append({name: float(value) for name, value in row.items() if name != "step"})
                report(step, rows[-1])
        finally:
            _end(program)
    if program.returncode == MISTAKE:
        raise UserError(f"{command[0]} refuses this run (exit code {MISTAKE}): see {log} for the reason, and fix it.")
    if program.returncode:
        code = program.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise TransientError(f"{command[0]} {how}: see {log}.")
    return rows


def _end(program: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to a program that still runs, and SIGKILL after SECONDS_TO_END."""
    program.terminate()
    try:
        program.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        program.kill()


def take_checkpoint(run: TrainingRun, folder: Path) -> None:
    """Write the trained checkpoint of `run` from a folder in the Hugging Face layout, in the format of the initial one."""
    from dagrpo.checkpoints.convert import write_as
    from dagrpo.checkpoints.source import open_checkpoint

    write_as(read_manifest(run.initial / MANIFEST).format, open_checkpoint(folder), run.policy, SHARD_BYTES)


def write_tables(run: TrainingRun, metrics: Sequence[Metrics]) -> None:
    """Write the metrics of each step from 1; the tables of rollouts and held-out answers stay empty."""
    assert len(metrics) == run.training.steps, f"{len(metrics)} of {run.training.steps} steps have metrics"
    names = sorted(metrics[0])
    columns = {name: pa.array([row[name] for row in metrics], pa.float64()) for name in names}
    write_parquet(run.metrics, pa.table({"step": pa.array(range(1, len(metrics) + 1), pa.int32()), **columns}))
    run.rollouts.parent.mkdir(parents=True, exist_ok=True)
    write_json(run.rollouts, {"files": {}})
    write_parquet(run.held_out, HELD_OUT.empty_table())


def _followed(path: Path, program: "subprocess.Popen[bytes]") -> Iterator[Mapping[str, float]]:
    """Yield each line of the file as the program appends it, until the program has ended."""
    read, has_ended = 0, False
    while not has_ended:
        has_ended = program.poll() is not None
        content = path.read_bytes()[read:] if path.is_file() else b""
        whole = content if has_ended else content[: content.rfind(b"\n") + 1]
        read += len(whole)
        yield from map(json.loads, whole.splitlines())
        if not has_ended:
            time.sleep(SECONDS_BETWEEN_LOOKS)
