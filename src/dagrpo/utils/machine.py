"""Processors, memory, threads and slow data types of this machine.

The number of threads is equal on every machine: a sum split among more threads is rounded differently, and the trained policy would
differ. Snakemake scales a rule's `threads` down to --cores and passes that number to libraries; in a stage run by hand, they use all
of the machine's. Imports torch only when something is timed.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

CGROUP = Path("/sys/fs/cgroup")
MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of cgroups in version 2, and in version 1


def processors() -> int:
    """Return the number of processors of this process: those that it may run on, or a container's share of them if less."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, _shares())]))


def memory_of_machine() -> int:
    """Return the bytes that processes here may use: the machine's memory, or a container's limit if lower."""
    return min([int(psutil.virtual_memory().total), *_memory_limits()])


def _shares() -> Iterator[float]:
    """Yield a container's quota of processor time per period, for each version of cgroups that sets one."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((CGROUP / name).read_text() for name in files).split()
            if int(quota) > 0:  # -1: none
                yield int(quota) / int(period)
        except (OSError, ValueError):  # no such file, or "max"
            continue


def _memory_limits() -> Iterator[int]:
    for name in MEMORY_LIMITS:
        try:
            yield int((CGROUP / name).read_text())
        except (OSError, ValueError):
            continue


READ_BY_LIBRARIES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def fix_threads(count: int) -> None:
    """Set the thread count of libraries imported after this, in this process and its children.

    It may exceed the cores that this process has: the result counts, not the speed.
    """
    os.environ.update(dict.fromkeys(READ_BY_LIBRARIES, str(count)))


if TYPE_CHECKING:
    from dagrpo.utils.distributed import World

SIDE = 256  # of the matrices
TRIES = 3
SLOW = 1.5  # times as long as in float32
FULL_TYPE = "float32"


def warning(types: Mapping[str, str]) -> str | None:
    """Return a warning about parameters whose type is slow on this CPU, with what to set; None if all are fast.

    types: the type of each parameter, such as {"training.dtype": "bfloat16"}. Takes some milliseconds for each type.
    """
    times = {dtype: times_as_long(dtype) for dtype in {*types.values()} - {FULL_TYPE}}
    slow = {key: dtype for key, dtype in types.items() if times.get(dtype, 0.0) > SLOW}
    if not slow:
        return None
    names = " and ".join(f"{key} ({dtype})" for key, dtype in slow.items())
    worst = max(times[dtype] for dtype in slow.values())
    return (
        f"This CPU has no fast instructions for {names}: a matrix product takes {worst:.1f} times as long as in float32, and an update "
        "may take longer still. Set float32, unless the run must compute in 16 bits."
    )


def warn_of_slow_types(types: Mapping[str, str], world: "World") -> None:
    """Print the warning, if any, before a stage computes on a CPU; once for all ranks."""
    from dagrpo.utils.console import say

    if world.is_rank_zero and world.device.type == "cpu" and (message := warning(types)) is not None:
        say(message)


def times_as_long(dtype: str) -> float:
    """Time a matrix product in a type on this CPU, in units of float32's time."""
    return _seconds(dtype) / _seconds(FULL_TYPE)


def _seconds(dtype: str) -> float:
    """Return the time of the fastest of several products, on as many threads as torch has."""
    import torch

    matrix = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype))
    seconds = list[float]()
    for _ in range(TRIES + 1):  # the first one warms up
        start = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
