"""Watchdog that ends a stage when its workflow is gone.

A stage must not outlive the workflow that started it: two trainers would share one state. It watches from its first line on,
before its imports, so this module imports only the standard library and psutil. Unlike prctl(PR_SET_PDEATHSIG) this sees through
the shell in between, and does not mistake the end of one of Snakemake's threads for the end of Snakemake.
"""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import psutil

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_END = 60.0  # after SIGTERM: a process that waits in native code does not handle it
STARTED_BY = "DAGRPO_STARTED_BY"  # host:pid, set by the starter, which may be gone before the stage can look
GRACE = "DAGRPO_GRACE_SECONDS"  # set by the launcher of a stage with several processes
USUAL_GRACE = 20.0
STARTERS = frozenset({"snakemake", "dagrpo.pipeline.launch", "stage.py"})
_watching = threading.Event()


def name_as_starter() -> str:
    """Return this process's value of STARTED_BY, for the environment of its children."""
    return f"{socket.gethostname()}:{os.getpid()}"


def grace_seconds() -> float:
    """Return how many seconds the processes of a stage have to save their state after a signal to stop."""
    return float(os.environ.get(GRACE, USUAL_GRACE))


def stop_with_the_workflow() -> None:
    """Send this process SIGTERM when the Snakemake or the launcher above it is gone, SIGKILL a minute later.

    Does nothing for a stage run by hand, nor when it is called again.
    """
    if _watching.is_set():
        return
    _watching.set()
    starters = [parent for parent in psutil.Process().parents() if _is_starter(parent)]
    try:
        starters += [
            psutil.Process(pid) for pid in _named_starter()
        ]  # not above this process where `srun` is between them
    except psutil.NoSuchProcess:
        os.kill(os.getpid(), signal.SIGTERM)
    if starters:
        threading.Thread(target=_watch, args=(starters,), daemon=True, name="workflow-watch").start()


def end_with(pid: int, sentence: str) -> None:
    """Send this process SIGTERM when that process above it is gone, after printing why, and SIGKILL a minute later."""
    above = [psutil.Process(pid)]
    threading.Thread(target=_watch, args=(above, sentence), daemon=True, name="driver-watch").start()


def _named_starter() -> list[int]:
    """Return the pid that the environment names on this machine, if any."""
    host, _, pid = os.environ.get(STARTED_BY, "").partition(":")
    return [int(pid)] if host == socket.gethostname() else []


def _is_starter(process: psutil.Process) -> bool:
    try:
        return not STARTERS.isdisjoint(Path(word).name for word in process.cmdline()[:3])
    except psutil.Error:
        return False


def _watch(starters: list[psutil.Process], sentence: str = "") -> None:
    while all(_is_alive(starter) for starter in starters):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if sentence:
        print(sentence, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # gone since the previous call
        return False
