"""A stage must not outlive the workflow that started it: two trainers would share one state."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil

SECONDS_BETWEEN_LOOKS = 0.5


def stop_with_the_workflow() -> None:
    """Send this process SIGTERM when the Snakemake process above it is gone. Does nothing for a stage run by hand."""
    workflow = next((parent for parent in psutil.Process().parents() if _is_snakemake(parent)), None)
    if workflow is not None:
        threading.Thread(target=_watch, args=(workflow,), daemon=True, name="workflow-watch").start()


def _is_snakemake(process: psutil.Process) -> bool:
    try:
        return "snakemake" in {Path(word).name for word in process.cmdline()[:3]}
    except psutil.Error:
        return False


def _watch(workflow: psutil.Process) -> None:
    while workflow.is_running() and workflow.status() != psutil.STATUS_ZOMBIE:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
