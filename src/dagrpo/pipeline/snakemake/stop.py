"""SIGTERM for Snakemake treated as Ctrl-C: stop the stages and end.

By itself Snakemake would wait until they are done, and end with 1. A terminal's Ctrl-C reaches the stages too; a signal that another
program sends to Snakemake alone is passed on. The process ends by the signal, so that a shell and its scripts see 130 or 143.
"""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

SECONDS_TO_RECEIVE_IT = 5.0  # for stages to receive the terminal's signal


def stop_with_stages() -> None:
    """Install handlers: SIGTERM and SIGINT end this process's stages and raise KeyboardInterrupt. For the main thread alone.

    A SIGINT that is ignored, as in the background of a shell, stays so.
    """
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit.register(_end_by, signal.SIGINT)
    stages = running_stages()

    def terminate_late() -> None:
        _terminate(psutil.wait_procs(stages, timeout=SECONDS_TO_RECEIVE_IT)[1])

    threading.Thread(target=terminate_late, daemon=True).start()
    raise KeyboardInterrupt


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    atexit.register(_end_by, signal.SIGTERM)
    _terminate(running_stages())
    raise KeyboardInterrupt


def _end_by(signum: signal.Signals) -> None:
    """End the process, whose work is done, by the signal that stopped it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _terminate(stages: Iterable[psutil.Process]) -> None:
    for stage in stages:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            stage.terminate()


def running_stages() -> list[psutil.Process]:
    """List the stages below this process; for one that works in a separate process, its supervisor."""
    stages = list[psutil.Process]()
    for process in psutil.Process(os.getpid()).children(recursive=True):  # starters before those that they start
        with suppress(psutil.Error):  # it has just ended
            is_stage = any(Path(word).name == "stage.py" for word in process.cmdline()[:3])
            if is_stage and not any(parent in stages for parent in process.parents()):
                stages.append(process)
    return stages
