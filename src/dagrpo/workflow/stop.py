"""SIGTERM to Snakemake is Ctrl-C: it stops the stages and ends. By itself Snakemake would wait until they are done."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil


def stop_on_sigterm() -> None:
    """From now on, SIGTERM to this process ends its stages and raises KeyboardInterrupt. For the main thread alone."""
    signal.signal(signal.SIGTERM, _stop)


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    for stage in running_stages():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            stage.terminate()
    raise KeyboardInterrupt


def running_stages() -> list[psutil.Process]:
    """The stages below this process; of one that works in a process of its own, the one that supervises it."""
    below = [child for child in psutil.Process(os.getpid()).children(recursive=True) if _is_stage(child)]
    return [stage for stage in below if not _is_below(stage, below)]


def _is_below(stage: psutil.Process, others: list[psutil.Process]) -> bool:
    try:
        return any(parent in others for parent in stage.parents())
    except psutil.NoSuchProcess:  # it has just ended
        return False


def _is_stage(process: psutil.Process) -> bool:
    try:
        return any(Path(word).name == "stage.py" for word in process.cmdline()[:3])
    except psutil.Error:  # gone
        return False
