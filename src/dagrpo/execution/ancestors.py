"""A stage must not outlive the workflow that started it: two trainers would share one state."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil

SECONDS_BETWEEN_LOOKS = 0.5
STARTERS = frozenset({"snakemake", "torchrun", "dagrpo.launch", "stage.py"})


def stop_with_the_workflow() -> None:
    """Send this process SIGTERM when the Snakemake or the launcher above it is gone. Does nothing for a stage run by hand."""
    starters = [parent for parent in psutil.Process().parents() if _is_starter(parent)]
    if starters:
        threading.Thread(target=_watch, args=(starters,), daemon=True, name="workflow-watch").start()


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
