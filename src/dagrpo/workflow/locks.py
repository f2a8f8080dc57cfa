"""Snakemake's lock after a SIGKILL: it holds no process id, so a killed run would block every later one until --unlock."""

import os
from pathlib import Path

import psutil


def release_stale_lock(folder: Path) -> bool:
    """Remove the lock of `folder` if no other Snakemake process works there; says whether it did."""
    locks = sorted((folder / ".snakemake/locks").glob("*.lock"))
    if not locks or _others_at_work(folder.resolve()):
        return False
    for lock in locks:
        lock.unlink(missing_ok=True)
    return True


def _others_at_work(folder: Path) -> list[int]:
    """Processes other than this one and its ancestors that run Snakemake in `folder`."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [
        process.pid for process in psutil.process_iter() if process.pid not in mine and _runs_snakemake(process, folder)
    ]


def _runs_snakemake(process: psutil.Process, folder: Path) -> bool:
    try:
        names = [Path(word).name for word in process.cmdline()[:3]]
        return "snakemake" in names and Path(process.cwd()) == folder
    except psutil.Error:  # it ended meanwhile, or belongs to somebody else
        return False
