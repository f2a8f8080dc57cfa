"""The machine to plan for: this one, a GPU, or some memory."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from dagrpo.core.errors import UserError
from dagrpo.pipeline.plan.amounts import GIBIBYTE, size
from dagrpo.utils.devices import SECONDS_TO_COUNT, visible_devices
from dagrpo.utils.gpu_specs import MEBIBYTE, Gpu, gpu_named, kind_of
from dagrpo.utils.machine import memory_of_machine
from dagrpo.utils.watched_process import MEMORY

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
