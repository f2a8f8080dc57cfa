"""Checks of the machine: processors, memory, disk, GPUs, isolation, ports."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from dagrpo.cli.doctor import gpu_requirements, gpus, programs, slurm
from dagrpo.cli.doctor.finding import GIBIBYTE, Finding, check, gib
from dagrpo.engine.sglang.toolkit import RUNTIME, library, with_cuda_runtime
from dagrpo.utils.devices import visible_devices
from dagrpo.utils.environment import version_of

LEAST_MEMORY = 3 * GIBIBYTE  # of the smallest experiment
LEAST_DISK = 1 * GIBIBYTE
PORT_OF_UI = 5000
KERNELS = "sglang-kernel"
SANDBOX_SECONDS = 20.0


def findings(*, needs_isolation: bool) -> Iterator[Finding]:
    """Yield all findings, in seconds. `needs_isolation`: the experiment runs programs of the policy."""
    yield Finding(name="processors", detail=f"{len(os.sched_getaffinity(0))} that this process may use")
    yield _memory()
    yield gpu_requirements.disk(Path.cwd(), _needed_disk())
    yield gpu_requirements.shared_memory()
    yield gpu_requirements.cache(is_needed=False)  # runs of Snakemake take .state/cache
    yield from _gpus()
    yield from slurm.findings()
    yield _isolation(is_needed=needs_isolation)
    yield _loopback()
    yield _port_of_ui()


def _needed_disk() -> int:
    """Return the bytes on disk of the experiment of params.yaml, as `dagrpo plan` says; LEAST_DISK where it says nothing."""
    from dagrpo.config.schema import read_params
    from dagrpo.core.errors import UserError
    from dagrpo.pipeline.plan.memory import disk_of
    from dagrpo.pipeline.plan.models import Models

    try:
        params = read_params(Path("params.yaml"))
        return max(LEAST_DISK, sum(each.bytes for each in disk_of(params, Models.of(params))))
    except UserError:  # no params.yaml, or a model that is not on this machine
        return LEAST_DISK


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    detail = f"{gib(memory.available)} of {gib(memory.total)} free"
    remedy = f"end other programs: the smallest experiment takes {gib(LEAST_MEMORY)}"
    return check("memory", memory.available >= LEAST_MEMORY, detail, detail, remedy)


def _gpus() -> Iterator[Finding]:
    """Yield the driver, each GPU, and the other needs of runs on it; a single line without a GPU."""
    devices = visible_devices()
    if not devices:
        remedy = "where there is one: install its driver, so that nvidia-smi lists it, then `make gpu`"
        yield check("GPU", False, "", "everything runs on the CPU", remedy, needed=False)
        return
    if cards := gpus.cards():
        yield from gpus.of_cards(cards)
    else:
        named = "as CUDA_VISIBLE_DEVICES or the driver names it"
        yield from (Finding(name=f"GPU {device}", detail=named) for device in devices)
    yield programs.headers(is_needed=programs.is_environment())
    yield from programs.compilers()
    if version_of(KERNELS) is None:  # only requirements/gpu.lock has them
        fault = "not installed: everything runs on the CPU"
        yield check("packages for a GPU", False, "", fault, "make gpu", needed=False)
        return
    runtime = library(RUNTIME, {"LD_LIBRARY_PATH": with_cuda_runtime(os.environ)})
    fault = f"no {RUNTIME}, which servers with release_memory load before torch"
    yield check("CUDA runtime", runtime is not None, str(runtime), fault, "make gpu")


def _isolation(*, is_needed: bool) -> Finding:
    """Check that programs of a policy can be run, by running one."""
    from dagrpo_sandbox import Limits, SandboxUnavailable, run_cold

    try:
        result = asyncio.run(run_cold("print(1)", Limits(seconds=SANDBOX_SECONDS)))
    except SandboxUnavailable as error:
        trouble, _, remedy = str(error).rpartition("; ")
        remedy = remedy if trouble else "apt-get install bubblewrap"
        return check("bubblewrap", False, "", trouble or str(error), remedy, needed=is_needed)
    works = result.status == "ok" and result.stdout == "1\n"
    detail, fault = f"isolates programs, {result.seconds:.1f} s for one", f"a program ended with {result.status}"
    return check("bubblewrap", works, detail, fault, "see docs/sandbox.md", needed=is_needed)


def _loopback() -> Finding:
    fault = "no port on 127.0.0.1 can be opened"
    return check("loopback", _is_free(0), "ports on 127.0.0.1 can be opened", fault, "ip link set lo up")


def _port_of_ui() -> Finding:
    port, remedy = f"port {PORT_OF_UI} is", "dagrpo ui --port 5001"
    return check("dagrpo ui", _is_free(PORT_OF_UI), f"{port} free", f"{port} taken", remedy, needed=False)


def _is_free(port: int) -> bool:
    with socket.socket() as bound, suppress(OSError):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        return True
    return False
