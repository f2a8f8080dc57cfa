"""Where a run is, as its processes and files show: for the tally of kills, so roughly."""

import time
from collections.abc import Iterable
from pathlib import Path

import psutil
from tests.faults.kinds import OF_A_STAGE, Alive

from dagrpo.engine.sglang.startup import phase_in

LOOKS = 5
SECONDS_BETWEEN_LOOKS = 0.004


def phase(folder: Path, alive: Alive, victim: psutil.Process | None) -> str:
    """The stage that a process works for, or the one that was started last, and what that is doing."""
    stage = _stage_of(victim) or _youngest([each for kind in OF_A_STAGE & alive.keys() for each in alive[kind]])
    if stage is None:
        return "between stages"
    try:
        return f"{_word_after('--job', stage).stem.rpartition('-')[0]}: {_doing(folder, stage)}"
    except psutil.Error:
        return "a stage ends"


def _stage_of(process: psutil.Process | None) -> psutil.Process | None:
    """The process itself, or the one above it, that is a stage's."""
    try:
        above = [] if process is None else [process, *process.parents()]
        return next((each for each in above if "--job" in each.cmdline()), None)
    except psutil.Error:
        return None


def _youngest(processes: Iterable[psutil.Process]) -> psutil.Process | None:
    return max(processes, key=lambda process: process.create_time(), default=None)


def _word_after(option: str, process: psutil.Process) -> Path:
    words = process.cmdline()
    return Path(words[words.index(option) + 1])


def _doing(folder: Path, stage: psutil.Process) -> str:
    since = stage.create_time()
    if any(folder.glob(".state/tiny-*/.step_*")):
        return "writes a state"
    log = folder / _word_after("--log", stage)
    if _is_newer(server := log.with_name(f"{log.stem}.server.log"), since):
        if phase_in(server) != "answering":
            return "starts a server"
        return "computes" if _computes(stage) else "waits for the server"
    if any(folder.glob("*/tiny/**/.*.part")):
        return "writes outputs"
    locks = folder.glob(".state/tiny-*/lock.json")
    return "computes" if any(_is_newer(lock, since) for lock in locks) else "starts, or is short"


def _is_newer(path: Path, since: float) -> bool:
    try:
        return path.stat().st_mtime >= since
    except OSError:
        return False


def _computes(process: psutil.Process) -> bool:
    """Whether the main thread of the stage, or of what is below it, is at work."""
    for _ in range(LOOKS):
        ranks = [each for each in [process, *process.children(recursive=True)] if "--job" in each.cmdline()]
        if any(each.status() == psutil.STATUS_RUNNING for each in ranks):
            return True
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return False
