"""How fast a machine computes: the share of its data sheet that programs reach, or what a matrix product takes here."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dagrpo.gpus import Gpu
from dagrpo.plan.machine import Machine

UPDATE_SHARE = 0.3  # of a GPU's peak, of what training reaches (MFU); so much is usual for dense models of 1B and more
PREFILL_SHARE = 0.3  # the same of taking prompts in
READ_SHARE = 0.5  # of a GPU's bandwidth, of what decoding reaches
CPU_SHARE = 0.7  # of the timed product, of what an update reaches
SIDE = 1024  # of the matrices
TRIES = 4  # for each figure, far enough apart for another process to have paused
SECONDS = 0.1  # of a try, and between two
READ_BYTES = 1 << 27
# Of a server on a CPU, from SmolLM2-135M with 16 requests of 110 to 174 tokens: what attention gathers of the cache in a second,
# on one thread, and what a step of decoding takes besides.
CPU_CACHE_BANDWIDTH = 1.1e9
CPU_SECONDS_PER_STEP = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one device is taken to be. FLOPs per second are what programs reach, not a peak."""

    update: float  # FLOPs per second of training in its dtype
    fine_tuning: float  # the same of supervised fine-tuning in its dtype
    sampling: float  # FLOPs per second of the server in its dtype
    bandwidth: float  # bytes per second, of weights that decoding reads
    cache_bandwidth: float  # the same of keys and values
    per_step: float = 0.0  # seconds that each step of decoding adds
    processes_add_up: bool = True  # whether several processes are faster than one
    basis: str = ""  # in words


def speed_of(
    machine: Machine, training_dtype: str, rollout_dtype: str, threads: int, sft_dtype: str = "float32"
) -> Speed | None:
    """None: a GPU whose peaks are not known. On a CPU a matrix product is timed, which takes some three seconds."""
    if machine.gpu is not None:
        return _of_gpu(machine.gpu, training_dtype, rollout_dtype, sft_dtype)
    return None if machine.on_gpu else _of_this_cpu(training_dtype, rollout_dtype, threads, sft_dtype)


def busy() -> str | None:
    """A sentence, if more processes want to compute than this machine has cores: what is timed is then too slow."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= cores:
        return None
    return (
        f"This machine is busy: {load:.1f} processes have wanted its {cores} cores in the last minute. What is estimated may take a "
        "fraction of that where it is quiet."
    )


def _of_gpu(gpu: Gpu, training_dtype: str, rollout_dtype: str, sft_dtype: str) -> Speed:
    return Speed(
        update=UPDATE_SHARE * gpu.peak(training_dtype),
        fine_tuning=UPDATE_SHARE * gpu.peak(sft_dtype),
        sampling=PREFILL_SHARE * gpu.peak(rollout_dtype),
        bandwidth=READ_SHARE * gpu.bandwidth,
        cache_bandwidth=READ_SHARE * gpu.bandwidth,
        basis=f"{UPDATE_SHARE:.0%} of the peak of {gpu.name} ({gpu.peak(training_dtype) / 1e12:,.0f} TFLOP/s in {training_dtype}) for "
        f"training and prompts, {READ_SHARE:.0%} of its bandwidth ({gpu.bandwidth / 1e12:.1f} TB/s) for decoding",
    )


def _of_this_cpu(training_dtype: str, rollout_dtype: str, threads: int, sft_dtype: str) -> Speed:
    """A server on a CPU is reckoned with one thread, whatever runtime.engine.threads says."""
    training = _flops(training_dtype, threads)
    fine_tuning = training if training_dtype == sft_dtype else _flops(sft_dtype, threads)
    sampling, bandwidth = _flops(rollout_dtype, 1), _bandwidth()
    return Speed(
        update=CPU_SHARE * training,
        fine_tuning=CPU_SHARE * fine_tuning,
        sampling=sampling,
        bandwidth=bandwidth,
        cache_bandwidth=CPU_CACHE_BANDWIDTH,
        per_step=CPU_SECONDS_PER_STEP,
        processes_add_up=False,
        basis=f"{CPU_SHARE:.0%} of a matrix product timed here just now ({training / 1e9:,.0f} GFLOP/s in {training_dtype} by "
        f"{threads} threads) for training; one thread for the server ({sampling / 1e9:,.0f} GFLOP/s in {rollout_dtype})",
    )


def _flops(dtype: str, threads: int) -> float:
    """FLOPs per second of the fastest of several matrix products."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype))
        return 2 * SIDE**3 / _fastest(lambda: left @ left)
    finally:
        torch.set_num_threads(before)


def _bandwidth() -> float:
    """Bytes per second that are read by one thread."""
    values = torch.ones(READ_BYTES // 4)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return READ_BYTES / _fastest(lambda: values.sum())
    finally:
        torch.set_num_threads(before)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of all calls: what is slower has waited for other processes."""
    work()  # the first one warms up
    taken = list[float]()
    for number in range(TRIES):
        time.sleep(SECONDS if number else 0)
        taken += _calls(work)
    return min(taken)


def _calls(work: Callable[[], object]) -> list[float]:
    """Seconds of each of the calls that fit into SECONDS, at least one."""
    taken, start = list[float](), time.perf_counter()
    while not taken or time.perf_counter() - start < SECONDS:
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return taken
