"""A stage must not outlive the workflow that started it: two trainers would share one state."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import psutil

SECONDS_BETWEEN_LOOKS = 0.5
STARTED_BY = "DAGRPO_STARTED_BY"  # host:pid, set by whoever starts a stage: it may be gone before the stage can look
STARTERS = frozenset({"snakemake", "dagrpo.launch", "stage.py"})


def name_as_starter() -> str:
    """This process, for STARTED_BY in the environment of what it starts."""
    return f"{socket.gethostname()}:{os.getpid()}"


def stop_with_the_workflow() -> None:
    """Send this process SIGTERM when the Snakemake or the launcher above it is gone. Does nothing for a stage run by hand."""
    parents = psutil.Process().parents()
    if _is_orphan({parent.pid for parent in parents}):
        os.kill(os.getpid(), signal.SIGTERM)
    starters = [parent for parent in parents if _is_starter(parent)]
    if starters:
        threading.Thread(target=_watch, args=(starters,), daemon=True, name="workflow-watch").start()


def _is_orphan(parents: set[int]) -> bool:
    """Whether the starter that the environment names was on this machine and is above us no more."""
    host, _, pid = os.environ.get(STARTED_BY, "").partition(":")
    return host == socket.gethostname() and int(pid) not in parents


def _is_starter(process: psutil.Process) -> bool:
    try:
        return not STARTERS.isdisjoint(Path(word).name for word in process.cmdline()[:3])
    except psutil.Error:
        return False


def _watch(starters: list[psutil.Process]) -> None:
    while all(_is_alive(starter) for starter in starters):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # gone between the two questions
        return False
