"""`dagrpo profile`: time of each part of a training step."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagrpo.cli.shared import PARAMS, SeedToTrain, complete_presets
from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_STEPS
from dagrpo.utils.run_info import GROUP, SECONDS, times_of

if TYPE_CHECKING:
    from rich.table import Table

    from dagrpo.config.schema import Params
    from dagrpo.engine.interface import EngineOpener
    from dagrpo.trainer.run import TrainingRun

UPDATE = "update"
MOST_OPERATORS = 12  # rows of torch's table
ENDING = ".json.gz"
GIBIBYTE = 1 << 30
_BACKWARD = "autograd::engine::evaluate_function:"
_OPTIMIZER = "Optimizer.step#"


def profile(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="name of a preset; by default the experiment of params.yaml", autocompletion=complete_presets
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="number of steps to measure, after one warm-up step")] = 3,
    to: Annotated[Path | None, typer.Option(help=f"new file for the trace, NAME{ENDING}")] = None,
    seed: SeedToTrain = None,
) -> None:
    """Run a few training steps in a scratch folder, and report where their time goes. The experiment's results stay unchanged."""
    from dagrpo.config.project import require_own_code
    from dagrpo.pipeline.declaration import threads_of
    from dagrpo.pipeline.stages.train import STAGE
    from dagrpo.utils.console import plain_console, say
    from dagrpo.utils.devices import own_devices
    from dagrpo.utils.machine import fix_threads
    from dagrpo.utils.portable import compute_portably
    from dagrpo_replay.command import restart_portably
    from dagrpo_replay.train import training_run

    require_own_code()
    params = _params(experiment)
    restart_portably(params.runtime.portable_arithmetic)
    trace = to or Path(f"profile-{params.experiment.name}{ENDING}")
    _require_new_file(trace)
    if params.runtime.training.processes > 1:
        raise UserError(
            f"runtime.training.processes is {params.runtime.training.processes}, and a profile is of one process, which may need other "
            "memory: set it to 1 in params.yaml for the profile."
        )
    gpus = own_devices(STAGE.needs(params.runtime).gpus)  # GPUs that no run holds
    with TemporaryDirectory(prefix="dagrpo-profile-") as scratch, gpus:
        run = training_run(params, seed, Path(scratch))
        threads = threads_of(STAGE, run.runtime)
        fix_threads(threads)
        compute_portably(params.runtime.portable_arithmetic)
        say(f"{params.experiment.name}: one step to warm up, then {steps} measured, in one process")
        measured = measure(run, steps, trace, threads)
    plain_console().print(parts_table(measured))
    print(measured.operators)
    if measured.peak_bytes is not None:
        print(f"Peak memory of the trainer on the GPU: {measured.peak_bytes / GIBIBYTE:.1f} GiB.")
    print(f"The trace is in {trace}: open it at https://ui.perfetto.dev or in chrome://tracing.")


def _params(experiment: str | None) -> "Params":
    from dagrpo.config.presets import composed
    from dagrpo.config.schema import read_params

    params = read_params(PARAMS) if experiment is None or PARAMS.is_file() else None
    if params is not None and experiment in (None, params.experiment.name):
        return params
    assert experiment is not None
    return composed([experiment])


def _require_new_file(trace: Path) -> None:
    if not trace.name.endswith(ENDING):
        raise UserError(f"--to {trace} does not end in {ENDING}: torch writes a compressed JSON file.")
    if os.path.lexists(trace):  # a link to a file that is not there is followed, too
        raise UserError(f"{trace} already exists: name another file with --to, or delete it.")
    if not trace.absolute().parent.is_dir():
        raise UserError(f"--to {trace} is in a folder that is not there: make it, or name another file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Times of a run's measured steps."""

    parts: Mapping[str, float]  # seconds of a step's parts, mean over the measured steps
    backward: float  # seconds of a step's backward passes; on a GPU those of its kernels
    optimizer: float  # seconds of a step's optimizer, measured likewise
    operators: str  # torch's table of the operators with the most own time, over all measured steps
    peak_bytes: int | None  # of the GPU's memory; None on a CPU


class _MeasuredEnough(Exception):
    """Signal that ends a run after the last measured step, before it saves anything."""


def measure(
    run: "TrainingRun", steps: int, trace: Path, threads: int, opener: "EngineOpener | None" = None
) -> StepProfile:
    """Run one warm-up step and then `steps` steps, write a trace of these for Perfetto, and return their times.

    The policy after them is not saved. `trace`: a file whose name ends in .json.gz. `opener`: None for the run's engine.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # above its ERROR: it writes its starts and stops to stderr
    import torch
    from torch.profiler import ProfilerActivity, schedule
    from torch.profiler import profile as profiled

    from dagrpo.engine import open_engine
    from dagrpo.trainer.training import train
    from dagrpo.utils.distributed import process_group

    curve: list[Mapping[str, float]] = []
    with process_group(threads) as world:
        on_gpu = world.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profiled(activities=activities, schedule=schedule(wait=0, warmup=1, active=steps, repeat=1)) as profiler:

            def report(step: int, metrics: Mapping[str, float]) -> None:
                curve.append(metrics)
                if len(curve) > steps:
                    raise _MeasuredEnough
                profiler.step()

            with suppress(_MeasuredEnough):
                train(_of_few_steps(run, steps), report, world, opener or open_engine)
        profiler.export_chrome_trace(str(trace))
        peak = torch.cuda.max_memory_reserved(world.device) if on_gpu else None
        return summarised(curve[1:], profiler.key_averages(), peak, on_gpu=on_gpu)


def _of_few_steps(run: "TrainingRun", steps: int) -> "TrainingRun":
    """Return the run with one warm-up step, the measured ones, and one that is never run; no step is saved."""
    own = run.runtime.training.model_copy(update={"save_every": MOST_STEPS})
    return replace(
        run,
        training=run.training.model_copy(update={"steps": steps + 2, "evaluate_every": 0, "keep_policies": None}),
        runtime=run.runtime.model_copy(update={"training": own}),
    )


def summarised(curve: list[Mapping[str, float]], averages: Any, peak: int | None, *, on_gpu: bool) -> StepProfile:
    """Return the means over the steps in `curve`. `averages`: torch's key_averages, in microseconds; `peak`: bytes."""
    from torch._C._autograd import DeviceType

    times, device = times_of(curve), "device" if on_gpu else "cpu"

    def seconds_in(prefix: str) -> float:
        # Annotations have a second row on a GPU, whose time the rows of operators hold as well.
        rows = [row for row in averages if row.device_type == DeviceType.CPU and row.key.startswith(prefix)]
        return float(sum(getattr(row, f"{device}_time_total") for row in rows)) / 1e6 / len(curve)

    return StepProfile(
        parts={name: sum(each.get(name, 0.0) for each in times) / len(times) for name in times[0]},
        backward=seconds_in(_BACKWARD),
        optimizer=seconds_in(_OPTIMIZER),
        operators=averages.table(sort_by=f"self_{device}_time_total", row_limit=MOST_OPERATORS),
        peak_bytes=peak,
    )


def parts_table(measured: StepProfile) -> "Table":
    """Return a row for each part of a step, the longest first, with the parts of the update below it."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("of a step")
    for name in ("seconds", "share"):
        table.add_column(name, justify="right")
    parts = {name: value for name, value in measured.parts.items() if name.endswith(SECONDS)}
    whole = sum(parts.values())
    for name, value in sorted(parts.items(), key=lambda part: -part[1]):
        label = name.removeprefix(GROUP).removesuffix(SECONDS)
        table.add_row(label, f"{value:.3f}", f"{value / whole:.0%}")
        rest = max(value - measured.backward - measured.optimizer, 0.0)
        inside = (
            ("backward pass", measured.backward),
            ("optimizer", measured.optimizer),
            ("forward pass, loss, and waiting", rest),
        )
        for inner, seconds in inside if label == UPDATE else ():
            table.add_row(f"  {inner}", f"{seconds:.3f}", f"{seconds / whole:.0%}")
    table.add_row("all", f"{whole:.3f}", "100%")
    return table
