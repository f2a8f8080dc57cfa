"""Training steps of an experiment under torch's profiler."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from dagrpo.core.section import MOST_STEPS
from dagrpo.engine import open_engine
from dagrpo.engine.interface import EngineOpener
from dagrpo.trainer.loop import train
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.distributed import process_group
from dagrpo.utils.timings import times_of

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
_BACKWARD = "autograd::engine::evaluate_function:"
_OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Operator of torch, over all measured steps."""

    name: str
    calls: int
    seconds: float  # self time, without the operators that it calls


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Times of a run's measured steps."""

    steps: int
    parts: Mapping[str, float]  # seconds of a step's parts, mean over the measured steps
    backward: float  # seconds of a step's backward passes; on a GPU those of its kernels
    optimizer: float  # seconds of a step's optimizer, measured likewise
    operators: tuple[Operator, ...]  # those with the most seconds first
    launches: int  # kernels that were launched in all measured steps; 0 on a CPU
    peak_bytes: int | None  # of the GPU's memory; None on a CPU

    @property
    def share_of_products(self) -> float:
        """Return the share of matrix products in the time of all operators."""
        whole = sum(each.seconds for each in self.operators)
        return sum(each.seconds for each in self.operators if each.name in PRODUCTS) / whole if whole else 0.0


class _MeasuredEnough(Exception):
    """Signal that ends a run after the last measured step, before it saves anything."""


def measure(run: TrainingRun, steps: int, trace: Path, threads: int, opener: EngineOpener = open_engine) -> StepProfile:
    """Run one warm-up step and then `steps` steps, write a trace of these for Perfetto, and return their times.

    The policy after them is not saved. `trace`: a file whose name ends in .json.gz.
    """
    silence_kineto()
    curve: list[Mapping[str, float]] = []
    with process_group(threads) as world:
        on_gpu = world.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=steps, repeat=1)) as profiler:

            def report(step: int, metrics: Mapping[str, float]) -> None:
                curve.append(metrics)
                if len(curve) > steps:
                    raise _MeasuredEnough
                profiler.step()

            with suppress(_MeasuredEnough):
                train(_of_few_steps(run, steps), report, world, opener)
        profiler.export_chrome_trace(str(trace))
        averages = profiler.key_averages()
        peak = torch.cuda.max_memory_reserved(world.device) if on_gpu else None
    return _summarised(curve[1:], averages, peak, on_gpu=on_gpu)


def silence_kineto() -> None:
    """Keep torch's profiler from writing its starts and stops to stderr; before its first use in a process."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # above its USDT, which is above its ERROR


def _of_few_steps(run: TrainingRun, steps: int) -> TrainingRun:
    """Return the run with one warm-up step, the measured ones, and one that is never run; no step is saved."""
    own = run.runtime.training.model_copy(update={"save_every": MOST_STEPS})
    return replace(
        run,
        training=run.training.model_copy(update={"steps": steps + 2, "evaluate_every": 0}),
        runtime=run.runtime.model_copy(update={"training": own}),
    )


def _summarised(curve: list[Mapping[str, float]], averages: Any, peak: int | None, *, on_gpu: bool) -> StepProfile:
    """Return the means over the steps in `curve`. `averages`: the result of torch's key_averages, in microseconds."""
    times = times_of(curve)
    own, whole = (
        ("self_device_time_total", "device_time_total") if on_gpu else ("self_cpu_time_total", "cpu_time_total")
    )
    # Kernels and annotations have separate rows on a GPU, whose time the rows of operators hold as well.
    rows = [row for row in averages if row.device_type == DeviceType.CPU and not row.key.startswith("ProfilerStep")]

    def seconds_in(prefix: str) -> float:
        return float(sum(getattr(row, whole) for row in rows if row.key.startswith(prefix))) / 1e6 / len(curve)

    operators = [Operator(name=row.key, calls=row.count, seconds=getattr(row, own) / 1e6) for row in rows]
    return StepProfile(
        steps=len(curve),
        parts={name: sum(each.get(name, 0.0) for each in times) / len(times) for name in times[0]},
        backward=seconds_in(_BACKWARD),
        optimizer=seconds_in(_OPTIMIZER),
        operators=tuple(sorted(operators, key=lambda each: (-each.seconds, each.name))),
        launches=sum(each.calls for each in operators if each.name in LAUNCHES),
        peak_bytes=peak,
    )
