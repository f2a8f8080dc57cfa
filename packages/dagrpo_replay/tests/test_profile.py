"""`dagrpo profile` measures a few steps, writes a trace, and leaves results alone."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.trainer import runs
from tests.trainer.conftest import inputs
from torch._C._autograd import DeviceType
from typer.testing import CliRunner

from dagrpo.cli import application as application
from dagrpo.core.errors import UserError
from dagrpo_replay.profile import StepProfile, measure, parts_table, summarised

__all__ = ["inputs"]


class Averages(list[SimpleNamespace]):
    """What torch's profiler returns: rows, in microseconds over two steps, and a table of them."""

    def table(self, sort_by: str, row_limit: int) -> str:
        return f"{row_limit} rows by {sort_by}"


def _row(key: str, whole: int, device: DeviceType = DeviceType.CPU) -> SimpleNamespace:
    return SimpleNamespace(key=key, device_type=device, cpu_time_total=whole, device_time_total=2 * whole)


ROWS = [
    _row("ProfilerStep*", 9_000_000),
    _row("autograd::engine::evaluate_function: MmBackward0", 1_000_000),
    _row("autograd::engine::evaluate_function: MulBackward0", 200_000),
    _row("Optimizer.step#AdamW.step", 400_000),
    _row("Optimizer.step#AdamW.step", 400_000, DeviceType.CUDA),  # an annotation of the row before, on a GPU
]
CURVE: list[dict[str, float]] = [
    {"timing/update_seconds": 1.0, "timing/rollout_seconds": 2.0, "reward/mean": 0.5},
    {"timing/update_seconds": 2.0, "timing/rollout_seconds": 4.0, "reward/mean": 0.6},
]


def _profiled(peak: int | None = None) -> StepProfile:
    return summarised([*CURVE], Averages(ROWS), peak, on_gpu=peak is not None)


def test_the_figures_are_means_over_the_measured_steps() -> None:
    cpu, gpu = _profiled(), _profiled(peak=1 << 30)
    assert cpu.parts == {"timing/update_seconds": 1.5, "timing/rollout_seconds": 3.0}
    assert (cpu.backward, cpu.optimizer, cpu.operators) == (0.6, 0.2, "12 rows by self_cpu_time_total")
    assert (gpu.backward, gpu.optimizer, gpu.operators) == (1.2, 0.4, "12 rows by self_device_time_total")


def test_an_update_is_divided_into_backward_optimizer_and_the_rest() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(parts_table(_profiled()))
    rows = [line.split() for line in captured.get().splitlines()]
    assert ["rollout", "3.000", "67%"] in rows
    assert ["backward", "pass", "0.600", "13%"] in rows
    assert ["forward", "pass,", "loss,", "and", "waiting", "0.700", "16%"] in rows
    assert rows[-1] == ["all", "4.500", "100%"]


def test_steps_are_measured_and_nothing_but_the_trace_is_left(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    out, trace = tmp_path / "scratch", tmp_path / "trace.json.gz"
    run = runs.training_run(inputs, out / "state", out, steps=1)
    found = measure(run, 2, trace, 1, runs.opener([]))
    assert found.parts["timing/update_seconds"] > found.backward > 0 < found.optimizer
    assert "aten::" in found.operators
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {"aten::mm", "Optimizer.step#AdamW.step"} <= {event.get("name") for event in events}
    assert not [*run.state.glob("step_*")]
    assert not run.policy.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["arithmetic_tiny", "--to", "trace.json"], "does not end in .json.gz"),
        (["arithmetic_tiny", "--to", "nowhere/trace.json.gz"], "is in a folder that is not there"),
        (["arithmetic_tyni"], "arithmetic_tiny"),
        (["arithmetic_tiny"], "is missing, with which training starts: make it with `snakemake --cores all"),
    ],
)
def test_a_mistake_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "presets").symlink_to(Path("presets").absolute())
    (tmp_path / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(application.app, ["profile", *arguments])
    assert isinstance(failed.exception, UserError)
    assert sentence in str(failed.exception)
