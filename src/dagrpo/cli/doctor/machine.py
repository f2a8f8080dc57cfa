"""Checks of the machine: processors, memory, disk, GPUs, isolation, ports."""

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from dagrpo.cli.doctor import gpu_requirements, gpus, programs, slurm
from dagrpo.cli.doctor.finding import Finding
from dagrpo.engine.sglang.toolkit import RUNTIME, library, with_cuda_runtime
from dagrpo.utils.devices import visible_devices
from dagrpo.utils.environment import version_of

GIBIBYTE = 1 << 30
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
    yield replace(gpu_requirements.cache(), is_needed=False)  # runs of Snakemake take .state/cache
    yield from _gpus()
    yield from slurm.findings()
    yield _isolation(is_needed=needs_isolation)
    yield _loopback()
    yield _port_of_ui()


def _needed_disk() -> int:
    """Return the bytes on disk of the experiment of params.yaml, as `dagrpo plan` says; LEAST_DISK where it says nothing."""
    from dagrpo.config.schema import read_params
    from dagrpo.core.errors import UserError
    from dagrpo.pipeline.plan.disk import disk_of
    from dagrpo.pipeline.plan.models import Models

    try:
        params = read_params(Path("params.yaml"))
        return max(LEAST_DISK, sum(each.bytes for each in disk_of(params, Models.of(params))))
    except UserError:  # no params.yaml, or a model that is not on this machine
        return LEAST_DISK


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    return Finding(
        name="memory",
        detail=f"{_gib(memory.available)} of {_gib(memory.total)} free",
        is_there=memory.available >= LEAST_MEMORY,
        remedy=f"end other programs: the smallest experiment takes {_gib(LEAST_MEMORY)}",
    )


def _gpus() -> Iterator[Finding]:
    """Yield the driver, each GPU, and the other needs of runs on it; a single line without a GPU."""
    devices = visible_devices()
    if not devices:
        yield Finding(
            name="GPU",
            detail="everything runs on the CPU",
            is_there=False,
            is_needed=False,
            remedy="where there is one: install its driver, so that nvidia-smi lists it, then `make gpu`",
        )
        return
    cards = gpus.cards()
    yield from (
        gpus.of_cards(cards)
        if cards
        else (
            Finding(name=f"GPU {device}", detail="as CUDA_VISIBLE_DEVICES or the driver names it") for device in devices
        )
    )
    yield programs.headers(is_needed=programs.is_environment())
    yield from programs.compilers()
    if version_of(KERNELS) is None:  # only requirements/gpu.lock has them
        yield Finding(
            name="packages for a GPU",
            detail="not installed: everything runs on the CPU",
            is_there=False,
            is_needed=False,
            remedy="make gpu",
        )
        return
    runtime = library(RUNTIME, {"LD_LIBRARY_PATH": with_cuda_runtime(os.environ)})
    yield Finding(
        name="CUDA runtime",
        detail=str(runtime) if runtime else f"no {RUNTIME}, which servers with release_memory load before torch",
        is_there=runtime is not None,
        remedy="make gpu",
    )


def _isolation(*, is_needed: bool) -> Finding:
    """Check that programs of a policy can be run, by running one."""
    from dagrpo_sandbox import Limits, SandboxUnavailable, run_cold

    try:
        result = asyncio.run(run_cold("print(1)", Limits(seconds=SANDBOX_SECONDS)))
    except SandboxUnavailable as error:
        trouble, _, remedy = str(error).rpartition("; ")
        return Finding(
            name="bubblewrap",
            detail=trouble or str(error),
            is_there=False,
            is_needed=is_needed,
            remedy=remedy if trouble else "apt-get install bubblewrap",
        )
    works = result.status == "ok" and result.stdout == "1\n"
    return Finding(
        name="bubblewrap",
        detail=f"isolates programs, {result.seconds:.1f} s for one"
        if works
        else f"a program ended with {result.status}",
        is_there=works,
        is_needed=is_needed,
        remedy="see docs/sandbox.md",
    )


def _loopback() -> Finding:
    with socket.socket() as bound:
        try:
            bound.bind(("127.0.0.1", 0))
        except OSError as error:
            detail, works = f"no port on 127.0.0.1 ({error.strerror})", False
        else:
            detail, works = "ports on 127.0.0.1 can be opened", True
    return Finding(name="loopback", detail=detail, is_there=works, remedy="ip link set lo up")


def _port_of_ui() -> Finding:
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", PORT_OF_UI))
        except OSError:
            detail, is_free = f"port {PORT_OF_UI} is taken", False
        else:
            detail, is_free = f"port {PORT_OF_UI} is free", True
    return Finding(name="dagrpo ui", detail=detail, is_there=is_free, is_needed=False, remedy="dagrpo ui --port 5001")


def _gib(count: float) -> str:
    return f"{count / GIBIBYTE:.1f} GiB"
