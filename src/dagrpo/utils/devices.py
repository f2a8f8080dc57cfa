"""Exclusive assignment of GPUs to jobs.

Snakemake counts GPUs but names none. A job locks the first free ones by a file per device, which the system releases however the
job ends. It does not schedule: Snakemake's `resources: gpu` decides which jobs run at the same time.
"""

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dagrpo.core.errors import UserError
from dagrpo.utils.tempdirs import is_own_folder

VISIBLE = "CUDA_VISIBLE_DEVICES"
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BEFORE_NOTICE = 5.0
SECONDS_TO_COUNT = 20.0  # a driver that takes longer is broken
DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the latter of WSL
# In another process: where a driver was initialised, forked children cannot use it.
_ASK_THE_DRIVER = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
if not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)):
    print(*range(count.value), sep="\\n")
"""
LOCKS = Path("/tmp") / f"dagrpo-devices-{os.getuid()}"  # one place for all jobs, whatever their TMPDIR


def visible_devices() -> list[str]:
    """List this machine's GPUs that this process may use, by index or UUID; [] without GPUs."""
    if VISIBLE in os.environ:
        names = [name.strip() for name in os.environ[VISIBLE].split(",")]
        return list(dict.fromkeys(itertools.takewhile(lambda name: name not in {"", "-1"}, names)))  # as CUDA reads it
    listed = _numbers("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
    if not listed and any(
        file.exists() for file in DRIVER_FILES
    ):  # a container may have the driver and not the program
        listed = _numbers(sys.executable, "-I", "-c", _ASK_THE_DRIVER)
    return listed


def _numbers(*command: str) -> list[str]:
    """Return the numbers that a program prints, one on each line; [] if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS_TO_COUNT, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip().isdecimal()]


@contextmanager
def own_devices(count: int) -> Iterator[list[str]]:
    """Lock `count` GPUs that no other job of this user on this machine holds, and make only them visible.

    Does nothing on a machine without GPUs. Raises UserError if the machine has some, but fewer than `count`.
    """
    devices = visible_devices()
    if not devices or count == 0:
        yield []
        return
    if len(devices) < count:
        raise UserError(
            f"{count} GPUs are needed and this machine has {len(devices)}: lower runtime.training.processes (or that of sft) or "
            "runtime.engine.replicas or tensor_parallel, set own_gpus of runtime.engine or runtime.reward_model to false, or run on a "
            "machine with more."
        )
    with ExitStack() as locks:
        mine = _take(devices, count, locks)
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = ",".join(mine)
        try:
            yield mine
        finally:
            os.environ.pop(VISIBLE)
            os.environ |= {} if before is None else {VISIBLE: before}


def _take(devices: Sequence[str], count: int, locks: ExitStack) -> list[str]:
    """Lock the first `count` free devices, or none while some are missing: two jobs could wait for each other."""
    started, is_announced = time.monotonic(), False
    while True:
        devices_locked: list[str] = []
        attempt = ExitStack()
        for device in devices:
            with suppress(Timeout):
                attempt.enter_context(FileLock(_lock_of(device), timeout=0))
                devices_locked.append(device)
            if len(devices_locked) == count:
                locks.push(attempt)
                return devices_locked
        attempt.close()
        if not is_announced and time.monotonic() - started > SECONDS_BEFORE_NOTICE:
            print(f"Waiting for {count} free GPUs of {len(devices)}: other jobs hold the rest.", flush=True)
            is_announced = True
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _lock_of(device: str) -> Path:
    with suppress(FileExistsError):
        LOCKS.mkdir(mode=0o700)
    if not is_own_folder(LOCKS):
        raise UserError(
            f"{LOCKS} must be a folder that you alone may write to: remove it, or have its owner remove it."
        )
    return LOCKS / f"{socket.gethostname()}-{device.replace('/', '_')}.lock"
