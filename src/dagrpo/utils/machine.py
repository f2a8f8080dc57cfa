"""Processors and memory that processes here may use, also in a container."""

import os
from collections.abc import Iterator
from pathlib import Path

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
