"""The processes of a run, told apart by what they are for."""

import os
import random
import signal
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import psutil
from tests.workflow import clones

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Kind(StrEnum):
    """What a process of a run is for."""

    SNAKEMAKE = "Snakemake"
    SUPERVISOR = "supervisor of a stage"
    STAGE = "stage"
    LAUNCHER = "launcher of ranks"
    RANK = "rank"
    SERVER = "SGLang server"
    WORKER = "child of the server"
    DELIVERY = "delivery to MLflow"
    TERMINAL = "terminal's process group"  # what Ctrl-C reaches


def running(folder: Path) -> dict[Kind, list[psutil.Process]]:
    """The live processes of a run in a clone."""
    found: dict[Kind, list[psutil.Process]] = {}
    for process in clones.processes(folder):
        try:
            kind = _kind_of(process)
        except psutil.Error:  # it has just ended
            continue
        if kind is not None:
            found.setdefault(kind, []).append(process)
    return found


def _kind_of(process: psutil.Process) -> Kind | None:
    words = process.cmdline()
    names = [Path(word).name for word in words[:4]]
    modules = {
        "sglang.launch_server": Kind.SERVER,
        "dagrpo.tracking.delivery": Kind.DELIVERY,
        "dagrpo.launch": Kind.LAUNCHER,
    }
    for module, kind in modules.items():
        if module in names:
            return kind
    if process.name().startswith("sglang"):
        return Kind.WORKER
    if "stage.py" in names:
        return _kind_of_stage(process, words)
    return Kind.SNAKEMAKE if "snakemake" in names[:2] else None


def _kind_of_stage(process: psutil.Process, words: list[str]) -> Kind:
    if "--attempt" in words:
        return Kind.RANK if "TORCHELASTIC_RUN_ID" in process.environ() else Kind.STAGE
    below = (child.cmdline() for child in process.children())
    return Kind.SUPERVISOR if any("--attempt" in line for line in below) else Kind.STAGE


def choose(draw: random.Random, alive: dict[Kind, list[psutil.Process]], killed: dict[str, int]) -> Kind:
    """One of the kinds that are alive, or the terminal's group; those that were killed seldom are likelier."""
    kinds = [*sorted(alive), Kind.TERMINAL]
    return draw.choices(kinds, weights=[1 / (1 + killed.get(kind, 0)) ** 2 for kind in kinds])[0]


def kill(kind: Kind, group: int, alive: dict[Kind, list[psutil.Process]], draw: random.Random) -> str:
    """Send a signal to one process of a kind; what was sent to whom."""
    if kind is Kind.TERMINAL:
        os.killpg(group, signal.SIGINT)
        return f"SIGINT to the {kind}"
    victim, number = draw.choice(alive[kind]), draw.choice(SIGNALS)
    name = _name_of(victim)
    victim.send_signal(number)
    return f"{number.name} to the {kind} {name}"


def _name_of(process: psutil.Process) -> str:
    """The stage that a process works for, where its command line says it."""
    words: Iterator[str] = iter(process.cmdline())
    logs = [next(words, "") for word in words if word == "--log"]
    return f"({Path(logs[0]).stem}, {process.pid})" if logs else f"({process.pid})"
