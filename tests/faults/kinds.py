"""The processes of a run, told apart by what they are for."""

import os
import random
import signal
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import psutil
from tests.pipeline.snakemake import clones

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Kind(StrEnum):
    """What a process of a run is for; the last two are not one process."""

    DVC = "DVC"
    SNAKEMAKE = "Snakemake"
    SUPERVISOR = "supervisor of a stage"
    STAGE = "stage"
    LAUNCHER = "launcher of ranks"
    RANK_0 = "rank 0"
    RANK_1 = "rank 1"
    SERVER = "SGLang server"
    SCHEDULER = "scheduler of the server"
    DETOKENIZER = "detokenizer of the server"
    HELPER = "helper of a stage"  # compares answers
    SANDBOX = "sandbox of a tool"
    FOLLOWER = "follower of a stage, for MLflow"
    CTRL_C = "Ctrl-C in the terminal"
    GROUP = "process group of the command"


MODULES = {
    "sglang.launch_server": Kind.SERVER,
    "dagrpo_mlflow.follow": Kind.FOLLOWER,
    "dagrpo.pipeline.launch": Kind.LAUNCHER,
    "dagrpo_answers.worker": Kind.HELPER,
    "bwrap": Kind.SANDBOX,
    "snakemake": Kind.SNAKEMAKE,
    "dvc": Kind.DVC,
}
NAMES = {"sglang::sched": Kind.SCHEDULER, "sglang::detok": Kind.DETOKENIZER}
Alive = Mapping[Kind, list[psutil.Process]]


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
    for beginning, kind in NAMES.items():
        if process.name().startswith(beginning):
            return kind
    words = process.cmdline()
    names = [Path(word).name for word in words[:4]]
    if "stage.py" in names and "dagrpo.pipeline.launch" not in names:
        return _kind_of_stage(process, words)
    return next((MODULES[name] for name in names if name in MODULES), None)


def _kind_of_stage(process: psutil.Process, words: list[str]) -> Kind:
    if "--attempt" in words:
        rank = process.environ().get("RANK") if "TORCHELASTIC_RUN_ID" in process.environ() else None
        return {None: Kind.STAGE, "0": Kind.RANK_0}.get(rank, Kind.RANK_1)
    below = (child.cmdline() for child in process.children())
    return Kind.SUPERVISOR if any("--attempt" in line for line in below) else Kind.STAGE


def choose(draw: random.Random, alive: Alive, killed: Mapping[Kind, int]) -> Kind:
    """One of the kinds that are alive, or all at once; those that were killed seldom are likelier."""
    kinds = [*sorted(alive), Kind.CTRL_C, Kind.GROUP]
    return draw.choices(kinds, weights=[1 / (1 + killed.get(kind, 0)) ** 2 for kind in kinds])[0]


def kill(kind: Kind, group: int, victim: psutil.Process | None, draw: random.Random) -> str:
    """Send a signal to a process, or to the group of the command; what was sent to whom."""
    number = signal.SIGINT if kind is Kind.CTRL_C else draw.choice(SIGNALS)
    if victim is None:
        os.killpg(group, number)
        return f"{number.name} to the {kind}"
    told = f"{number.name} to the {kind} ({victim.pid})"
    victim.send_signal(number)
    return told
