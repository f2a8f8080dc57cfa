"""Speed of a machine: measured, or from its data sheet."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dagrpo.config.schema import Params
from dagrpo.pipeline.plan.counting import Kernel
from dagrpo.pipeline.plan.machine import Machine
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.gpu_specs import Gpu

# Shares of a GPU's data sheet that kernels reach, and what a launch costs. None was measured here on a GPU.
PRODUCT_SHARE = 0.55  # of the peak, in products of matrices
ATTENTION_SHARE = 0.35  # of the peak, in attention
BYTES_SHARE = 0.75  # of the bandwidth, in all other kernels
LAUNCH_SECONDS = 5e-6  # of the smallest kernel
PREFILL_SHARE = 0.3  # of the peak, in taking prompts in
READ_SHARE = 0.5  # of the bandwidth, in decoding
CPU_SHARE = 0.7  # of the timed product, of what an update reaches
SIDE = 1024  # of the matrices
TRIES = 4  # for each figure, far enough apart for another process to have paused
SECONDS = 0.1  # of a try, and between two
READ_BYTES = 1 << 27
# Of a server on a CPU, from SmolLM2-135M with 16 requests of 110 to 174 tokens: what attention gathers of the cache in a second,
# on one thread, and what a step of decoding takes besides.
CPU_CACHE_BANDWIDTH = 1.6e9
CPU_SECONDS_PER_STEP = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one device. FLOPs per second are those that programs reach, not a peak."""

    update: float  # FLOPs per second of training in its dtype; of a GPU its kernels say
    fine_tuning: float  # the same of supervised fine-tuning in its dtype
    sampling: float  # FLOPs per second of the server in its dtype
    bandwidth: float  # bytes per second, of weights that decoding reads
    cache_bandwidth: float  # the same of keys and values
    per_step: float = 0.0  # seconds that each step of decoding adds
    cores: int | None = None  # of a CPU, which several processes share; None: a device for each process
    gpu: Gpu | None = None  # None: a CPU
    basis: str = ""  # in words

    @property
    def is_of_gpu(self) -> bool:
        """Return True if it is the speed of a GPU."""
        return self.gpu is not None

    def seconds_of(self, kernel: Kernel) -> float:
        """Return the seconds of a kernel on the GPU: of its products, or of its bytes, whichever is longer."""
        assert self.gpu is not None
        share = ATTENTION_SHARE if kernel.attends else PRODUCT_SHARE
        products = kernel.flops / (share * self.gpu.peak(str(kernel.dtype).removeprefix("torch.")))
        return max(products, kernel.bytes / (BYTES_SHARE * self.gpu.bandwidth), LAUNCH_SECONDS)


class Dtypes(NamedTuple):
    """Types of the stages' computations."""

    training: str
    rollout: str
    sft: str


def speed_of(machine: Machine, params: Params) -> Speed | None:
    """Return a machine's speed; None for a GPU without known peaks. On a CPU a matrix product is timed, in some three seconds."""
    dtypes = Dtypes(params.training.dtype, params.rollout.dtype, params.sft.dtype)
    if machine.gpu is not None:
        return _of_gpu(machine.gpu, dtypes)
    return None if machine.on_gpu else _of_this_cpu(dtypes, params.runtime)


def cores_here() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy() -> str | None:
    """Return a warning if more processes compute than this machine has cores, so that measured speeds are too low; None otherwise."""
    load, cores = os.getloadavg()[0], cores_here()
    if load <= cores:
        return None
    return (
        f"This machine is busy: {load:.1f} processes have wanted its {cores} cores in the last minute. What is estimated may take a "
        "fraction of that where it is quiet."
    )


def _of_gpu(gpu: Gpu, dtypes: Dtypes) -> Speed:
    return Speed(
        update=PRODUCT_SHARE * gpu.peak(dtypes.training),
        fine_tuning=PRODUCT_SHARE * gpu.peak(dtypes.sft),
        sampling=PREFILL_SHARE * gpu.peak(dtypes.rollout),
        bandwidth=READ_SHARE * gpu.bandwidth,
        cache_bandwidth=READ_SHARE * gpu.bandwidth,
        gpu=gpu,
        basis=f"the kernels of an update, counted, at {PRODUCT_SHARE:.0%} of the peak of {gpu.name} in products "
        f"({gpu.peak(dtypes.training) / 1e12:,.0f} TFLOP/s in {dtypes.training}), {ATTENTION_SHARE:.0%} in attention and {BYTES_SHARE:.0%} "
        f"of its bandwidth ({gpu.bandwidth / 1e12:.1f} TB/s) in the rest; {PREFILL_SHARE:.0%} of the peak for prompts, {READ_SHARE:.0%} of "
        "the bandwidth for decoding",
    )


def _of_this_cpu(dtypes: Dtypes, runtime: Runtime) -> Speed:
    """Return the speed of this CPU: attention and reading with one thread of the server, however many it has."""
    threads, sft_threads, engine_threads = runtime.training.all_threads, runtime.sft.all_threads, runtime.engine.threads
    training = _flops(dtypes.training, threads)
    is_alike = (dtypes.training, threads) == (dtypes.sft, sft_threads)
    fine_tuning = training if is_alike else _flops(dtypes.sft, sft_threads)
    sampling, bandwidth = _flops(dtypes.rollout, engine_threads), _bandwidth()
    return Speed(
        update=CPU_SHARE * training,
        fine_tuning=CPU_SHARE * fine_tuning,
        sampling=sampling,
        bandwidth=bandwidth,
        cache_bandwidth=CPU_CACHE_BANDWIDTH,
        per_step=CPU_SECONDS_PER_STEP,
        cores=cores_here(),
        basis=f"{CPU_SHARE:.0%} of a matrix product timed here just now ({training / 1e9:,.0f} GFLOP/s in {dtypes.training} "
        f"by {threads} threads) for training; the server with runtime.engine.threads "
        f"{engine_threads} ({sampling / 1e9:,.0f} GFLOP/s in {dtypes.rollout})",
    )


def _flops(dtype: str, threads: int) -> float:
    """Return the FLOPs per second of the fastest of several matrix products."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        matrix = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype))
        return 2 * SIDE**3 / _fastest(lambda: matrix @ matrix)
    finally:
        torch.set_num_threads(before)


def _bandwidth() -> float:
    """Return the bytes per second that one thread reads."""
    values = torch.ones(READ_BYTES // 4)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return READ_BYTES / _fastest(lambda: values.sum())
    finally:
        torch.set_num_threads(before)


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of all calls: slower ones have waited for other processes."""
    work()  # the first one warms up
    durations = list[float]()
    for number in range(TRIES):
        time.sleep(SECONDS if number else 0)
        durations += _calls(work)
    return min(durations)


def _calls(work: Callable[[], object]) -> list[float]:
    """Return the seconds of each of the calls that fit into SECONDS, at least one."""
    durations, start = list[float](), time.perf_counter()
    while not durations or time.perf_counter() - start < SECONDS:
        call_start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - call_start)
    return durations
