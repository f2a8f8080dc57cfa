"""`dagrpo profile` measures a few steps, writes a trace, and leaves results alone."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table
from tests.trainer import runs
from tests.trainer.conftest import inputs
from torch._C._autograd import DeviceType
from typer.testing import CliRunner

from dagrpo.cli import application as application
from dagrpo.cli.profiling import measured
from dagrpo.cli.profiling.command import operators_table, parts_table
from dagrpo.cli.profiling.measured import StepProfile, measure
from dagrpo.core.errors import UserError

__all__ = ["inputs"]
PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
from dagrpo.cli.profiling.measured import silence_kineto
silence_kineto()
with profile(activities=[ProfilerActivity.CPU]):
    torch.ones(3)
"""


def _row(key: str, count: int, own: int, whole: int, device: DeviceType = DeviceType.CPU) -> SimpleNamespace:
    return SimpleNamespace(
        key=key,
        count=count,
        device_type=device,
        self_cpu_time_total=own,
        cpu_time_total=whole,
        self_device_time_total=own,
        device_time_total=whole,
    )


ROWS = [  # microseconds over two steps
    _row("ProfilerStep*", 2, 9_000_000, 9_000_000),
    _row("aten::mm", 40, 1_500_000, 1_500_000),
    _row("aten::mul", 80, 500_000, 500_000),
    _row("autograd::engine::evaluate_function: MmBackward0", 20, 0, 1_200_000),
    _row("Optimizer.step#AdamW.step", 2, 0, 400_000),
    _row("cudaLaunchKernel", 10, 0, 0),
]
ON_GPU = [  # what a GPU adds: kernels, and annotations, whose time is counted in the rows above
    _row("ampere_bf16_gemm", 40, 1_500_000, 1_500_000, DeviceType.CUDA),
    _row("Optimizer.step#AdamW.step", 2, 400_000, 400_000, DeviceType.CUDA),
]
CURVE: list[dict[str, float]] = [
    {"timing/update_seconds": 1.0, "timing/rollout_seconds": 2.0, "reward/mean": 0.5},
    {"timing/update_seconds": 2.0, "timing/rollout_seconds": 4.0, "reward/mean": 0.6},
]


def _profiled() -> StepProfile:
    return measured._summarised([*CURVE], ROWS, None, on_gpu=False)


def _text(table: Table) -> list[list[str]]:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(table)
    return [line.split() for line in captured.get().splitlines()]


def test_the_figures_are_means_over_the_measured_steps() -> None:
    told = _profiled()
    assert told.parts == {"timing/update_seconds": 1.5, "timing/rollout_seconds": 3.0}
    assert (told.backward, told.optimizer, told.launches) == (0.6, 0.2, 10)
    assert told.share_of_products == 0.75


def test_kernels_of_a_gpu_are_counted_once() -> None:
    told = measured._summarised([*CURVE], [*ROWS, *ON_GPU], 1 << 30, on_gpu=True)
    assert (told.share_of_products, told.optimizer, told.peak_bytes) == (0.75, 0.2, 1 << 30)
    assert "ampere_bf16_gemm" not in [each.name for each in told.operators]


def test_an_update_is_divided_into_backward_optimizer_and_the_rest() -> None:
    rows = _text(parts_table(_profiled()))
    assert ["rollout", "3.000", "67%"] in rows
    assert ["backward", "pass", "0.600", "13%"] in rows
    assert ["forward", "pass,", "loss,", "and", "waiting", "0.700", "16%"] in rows
    assert rows[-1] == ["all", "4.500", "100%"]


def test_operators_are_listed_by_their_own_time_per_step() -> None:
    rows = _text(operators_table(_profiled()))
    assert rows[1] == ["aten::mm", "20", "0.750", "75%"]
    assert rows[2] == ["aten::mul", "40", "0.250", "25%"]


@pytest.mark.nightly
def test_steps_are_measured_and_nothing_but_the_trace_is_left(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    out, trace = tmp_path / "scratch", tmp_path / "trace.json.gz"
    run = runs.training_run(inputs, out / "state", out, steps=1)
    told = measure(run, 2, trace, 1, runs.opener([]))
    assert told.steps == 2
    assert told.parts["timing/update_seconds"] > told.backward > 0 < told.optimizer
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {"aten::mm", "Optimizer.step#AdamW.step"} <= {event.get("name") for event in events}
    assert not [*run.state.glob("step_*")]
    assert not run.policy.exists()


@pytest.mark.nightly
def test_the_profiler_of_torch_writes_no_lines_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "trace.json"], "does not end in .json.gz"),
        (["--to", "nowhere/trace.json.gz"], "is in a folder that is not there"),
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
    monkeypatch.setattr("dagrpo.config.project.require_own_code", lambda: None)
    if arguments[0] == "--to":
        arguments = ["arithmetic_tiny", *arguments]
    failed = CliRunner().invoke(application.app, ["profile", *arguments])
    assert isinstance(failed.exception, UserError)
    assert sentence in str(failed.exception)
