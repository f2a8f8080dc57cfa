"""Jobs of SLURM, from its queue."""

import os
import subprocess
from dataclasses import dataclass

JOB_ID = "SLURM_JOB_ID"
SECONDS_TO_ANSWER = 20.0
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
_UNKNOWN = "Invalid job id"  # SLURM's words for a job that ended a while ago


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that waits or runs."""

    number: str  # "14", of an array "14_2"
    comment: str  # "rule_train_wildcards_tiny_0", as Snakemake's executor writes it


def own_job() -> str:
    """Return the number of the job that this process belongs to; "" outside SLURM."""
    return os.environ.get(JOB_ID, "")


def has_ended(job: str) -> bool:
    """Return True if a job certainly runs no more; False if SLURM does not answer."""
    return _queued("--jobs", job) == []


def jobs_named(name: str) -> list[QueuedJob] | None:
    """List the jobs of a name that wait or run; None if SLURM does not answer."""
    return _queued("--name", name)


def has_accounting() -> bool:
    """Return True if sacct answers."""
    return _answer("sacct", "--noheader", "--allocations") is not None


def has_gpus() -> bool | None:
    """Return True if a node of some partition has GPUs; None if SLURM does not answer."""
    answer = _answer("sinfo", "--noheader", "--format=%G")
    return None if answer is None else "gpu" in answer


def configuration() -> dict[str, str] | None:
    """Return the controller's settings by name; None if it does not answer."""
    answer = _answer("scontrol", "show", "config")
    if answer is None:
        return None
    pairs = (line.partition("=") for line in answer.splitlines())
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


def _queued(*which: str) -> list[QueuedJob] | None:
    answer = _answer("squeue", "--noheader", "--states=all", "--format=%i|%T|%k", *which)
    if answer is None:
        return None
    rows = [line.split("|", 2) for line in answer.splitlines() if line.count("|") >= 2]
    return [QueuedJob(number=number, comment=comment) for number, state, comment in rows if state not in ENDED]


def _answer(*command: str) -> str | None:
    """Return what a command of SLURM prints, nothing about a job that it has forgotten; None if SLURM does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_ANSWER)
    except (OSError, subprocess.SubprocessError):  # no SLURM here, or its controller is down
        return None
    if done.returncode != 0:
        return "" if _UNKNOWN in done.stderr else None
    return done.stdout
