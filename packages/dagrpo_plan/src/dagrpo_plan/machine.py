"""Memory and speed of a machine, measured or by data sheet."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.utils.console import size
from dagrpo.utils.devices import SECONDS_TO_COUNT, visible_devices
from dagrpo.utils.gpu_specs import MEBIBYTE, Gpu, gpu_named, kind_of
from dagrpo.utils.machine import memory_of_machine
from dagrpo.utils.watched_process import MEMORY
from dagrpo_plan.amounts import GIBIBYTE

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Kind of device; the experiment has as many as it asks for."""

    name: str
    memory: int  # bytes of a device; of a CPU those that this process may use
    on_gpu: bool
    is_here: bool  # measurements of this machine hold for it
    gpu: Gpu | None = None  # None: a CPU, or a GPU whose peaks are not known
    shared_memory: int | None = None  # free bytes of /dev/shm; None: not known, as of another machine


def machine_for(gpu: str | None, gibibytes: float | None) -> Machine:
    """Return the machine that the options name, else this one. Raises UserError for an unknown GPU, or if both are given."""
    if gpu is not None and gibibytes is not None:
        raise UserError("--gpu and --memory both say how much memory there is: give one of them.")
    if gpu is not None:
        kind = gpu_named(gpu)
        return Machine(name=kind.name, memory=kind.memory, gpu=kind, on_gpu=True, is_here=False)
    if gibibytes is not None:
        memory = round(gibibytes * GIBIBYTE)
        return Machine(name=f"a GPU with {size(memory)}", memory=memory, on_gpu=True, is_here=False)
    return _this_machine()


def _this_machine() -> Machine:
    free = shutil.disk_usage(MEMORY).free if os.access(MEMORY, os.W_OK) else 0
    devices = visible_devices()
    if devices:
        name, memory = _listed_by_the_driver(devices)
        return Machine(name=name, memory=memory, gpu=kind_of(name), on_gpu=True, is_here=True, shared_memory=free)
    return Machine(
        name="this machine's CPU", memory=memory_of_machine(), on_gpu=False, is_here=True, shared_memory=free
    )


def _listed_by_the_driver(devices: Sequence[str]) -> tuple[str, int]:
    """Return name and bytes of the GPU with the least memory. Raises UserError if the driver does not list them."""
    try:
        done = subprocess.run(
            [*QUERY, "--id", ",".join(devices)], capture_output=True, text=True, timeout=SECONDS_TO_COUNT, check=True
        )
        rows = [line.rpartition(",") for line in done.stdout.splitlines() if line.strip()]
        gpus = [(name.strip(), int(mebibytes) * MEBIBYTE) for name, _, mebibytes in rows]
        if not all(name and memory for name, memory in gpus):
            raise ValueError("no name or no memory")
        return min(gpus, key=lambda each: each[1])
    except (OSError, subprocess.SubprocessError, ValueError):
        raise UserError("nvidia-smi does not say how much memory the GPUs have: give --gpu or --memory.") from None


# Shares of a GPU's data sheet that programs reach; none was measured here on a GPU. Of the peak in the products of an update: by published
# rates of Llama 3 8B (torchtitan, docs/performance.md: 6,667 tokens/s on an H100, 2,973 on an A100), which no other card has here and takes
# the H100's. Of the peak in attention: flash attention 2 reaches 35% on an H100 (arXiv 2407.08608, abstract), and 50% to 73% forward on an
# A100 (arXiv 2307.08691, abstract), of which half is assumed for other cards.
PRODUCT_SHARE, PRODUCT_SHARE_A100 = 0.51, 0.73
ATTENTION_SHARE, ATTENTION_SHARE_HOPPER = 0.5, 0.35
# Assumed:
PREFILL_SHARE = 0.3  # of the peak, in taking prompts in
READ_SHARE = 0.5  # of the bandwidth, in decoding
STREAM_SHARE = 0.7  # of the bandwidth, between the products of an update
CPU_SHARE = 0.7  # of the timed product, of what an update reaches
SIDE = 1024  # of the matrices
SECONDS = 0.7  # of the calls for each figure, long enough for another process to have paused
READ_BYTES = 1 << 27
# Bytes per second between GPUs of a machine, in each direction: of NVLink by the data sheets (900 GB/s of an H100 in both), of which
# collectives are assumed to reach a share; else of PCIe 4.0 x16 through the host, assumed.
NVLINK = {"H100": 450e9, "H200": 450e9, "B200": 900e9, "A100": 300e9, "A100-SXM4-40GB": 300e9}
NVLINK_SHARE = 0.7
PCIE = 20e9
# Bytes per second of a disk, and of sha256 on one thread.
WRITE, DIGEST = 0.6e9, 1.6e9
# Of a server on a CPU, from SmolLM2-135M with 16 requests of 110 to 174 tokens: what attention gathers of the cache in a second,
# on one thread, and what a step of decoding takes besides.
CPU_CACHE_BANDWIDTH = 1.6e9
CPU_SECONDS_PER_STEP = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one device. FLOPs per second are those that programs reach, not a peak."""

    update: float  # FLOPs per second of training in its dtype
    fine_tuning: float  # the same of supervised fine-tuning in its dtype
    sampling: float  # FLOPs per second of the server in its dtype
    bandwidth: float  # bytes per second, of weights that decoding reads
    cache_bandwidth: float  # the same of keys and values
    attention: float = 1.0  # share of the rate of products that attention reaches
    streaming: float = 1.0  # `bandwidth` times this is reached between the products of an update
    link: float = PCIE  # bytes per second between devices of a machine
    write: float = WRITE  # bytes per second, to the disk
    digest: float = DIGEST  # bytes per second, on one thread
    per_step: float = 0.0  # seconds that each step of decoding adds
    memory: int | None = None  # bytes of a GPU; None: a CPU
    cores: int | None = None  # of a CPU, which several processes share; None: a device for each process
    basis: str = ""  # in words


def speed_of(machine: Machine, params: Params) -> Speed | None:
    """Return a machine's speed; None for a GPU without known peaks. Of this CPU products are timed: 3 seconds."""
    if machine.on_gpu and machine.gpu is None:
        return None
    return _of_this_cpu(params) if machine.gpu is None else _of_gpu(machine.gpu, params)


def _of_gpu(gpu: Gpu, params: Params) -> Speed:
    peak = gpu.peak(params.training.dtype)
    products = PRODUCT_SHARE_A100 if gpu.name.startswith("A100") else PRODUCT_SHARE
    attention = ATTENTION_SHARE_HOPPER if gpu.name.startswith(("H100", "H200", "B200")) else ATTENTION_SHARE
    return Speed(
        update=products * peak,
        fine_tuning=products * gpu.peak(params.sft.dtype),
        sampling=PREFILL_SHARE * gpu.peak(params.rollout.dtype),
        bandwidth=READ_SHARE * gpu.bandwidth,
        cache_bandwidth=READ_SHARE * gpu.bandwidth,
        attention=attention / products,
        streaming=STREAM_SHARE / READ_SHARE,
        memory=gpu.memory,
        link=NVLINK_SHARE * NVLINK[gpu.name] if gpu.name in NVLINK else PCIE,
        basis=f"products of an update at up to {products:.0%} of the peak of {gpu.name} ({peak / 1e12:,.0f} TFLOP/s in "
        f"{params.training.dtype}), "
        f"its attention at {attention:.0%}, the rest at {STREAM_SHARE:.0%} of the bandwidth ({gpu.bandwidth / 1e12:.1f} TB/s), prompts at "
        f"{PREFILL_SHARE:.0%} of the peak, decoding at {READ_SHARE:.0%} of the bandwidth",
    )


def _of_this_cpu(params: Params) -> Speed:
    """Return the speed of this CPU: attention and reading with one thread of the server, however many it has."""
    runtime, cores, load = params.runtime, len(os.sched_getaffinity(0)), os.getloadavg()[0]
    threads, sft_threads, engine_threads = (
        runtime.training.threads_of_node(runtime.nodes),
        runtime.sft.all_threads,
        runtime.engine.threads,
    )
    training = _flops(params.training.dtype, threads)
    sampling = _flops(params.rollout.dtype, engine_threads)
    busy = f", while {load:.1f} processes wanted the {cores} cores: a quiet machine is faster" if load > cores else ""
    return Speed(
        update=CPU_SHARE * training,
        fine_tuning=CPU_SHARE * _flops(params.sft.dtype, sft_threads),
        sampling=sampling,
        bandwidth=READ_BYTES / _fastest(torch.ones(READ_BYTES // 4).sum, 1),
        cache_bandwidth=CPU_CACHE_BANDWIDTH,
        per_step=CPU_SECONDS_PER_STEP,
        cores=cores,
        basis=f"{CPU_SHARE:.0%} of a matrix product timed here just now ({training / 1e9:,.0f} GFLOP/s in {params.training.dtype} "
        f"by {threads} threads) for training; the server with runtime.engine.threads "
        f"{engine_threads} ({sampling / 1e9:,.0f} GFLOP/s in {params.rollout.dtype}){busy}",
    )


@cache
def _flops(dtype: str, threads: int) -> float:
    """Return the FLOPs per second of the fastest of several matrix products."""
    matrix = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype))
    return 2 * SIDE**3 / _fastest(lambda: matrix @ matrix, threads)


def _fastest(work: Callable[[], object], threads: int) -> float:
    """Return the seconds of the fastest of many calls by `threads` threads: slower ones have waited for other processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        work()  # the first one warms up
        fastest, end = float("inf"), time.perf_counter() + SECONDS
        while (start := time.perf_counter()) < end:
            work()
            fastest = min(fastest, time.perf_counter() - start)
        return fastest
    finally:
        torch.set_num_threads(before)
