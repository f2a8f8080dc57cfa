"""Jobs of SLURM, from its queue."""

import os
import re
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


def own_cluster() -> str:
    """Return the name of the cluster of this process's job, or of the one that answers here; "" without SLURM."""
    return os.environ.get("SLURM_CLUSTER_NAME") or (configuration() or {}).get("ClusterName", "")


def has_ended(job: str, cluster: str = "") -> bool:
    """Return True if a job certainly runs no more; False if its SLURM does not answer. `cluster`: its name; "": this one."""
    return _is_here(cluster) and _queued("--jobs", job) == []


def jobs_named(name: str, cluster: str = "") -> list[QueuedJob] | None:
    """List the jobs of a name that wait or run; None if their SLURM does not answer. `cluster`: its name; "": this one."""
    return _queued("--name", name) if _is_here(cluster) else None


def _is_here(cluster: str) -> bool:
    """Return True for the cluster that answers here: two with one disk number their jobs alike."""
    return not cluster or cluster == own_cluster()


def own_node() -> str:
    """Return SLURM's name of this machine; "" outside of its jobs."""
    return os.environ.get("SLURMD_NODENAME", "")


def own_cores() -> int:
    """Return the cores that the job has on each of its nodes; those of this process if SLURM does not answer.

    SLURM need not confine processes to them, and Snakemake takes SLURM_CPUS_ON_NODE away from its jobs.
    """
    answer = _answer("squeue", "--noheader", "--jobs", own_job(), "--format=%C %D") or ""
    cores, _, nodes = answer.strip().partition(" ")
    return max(1, int(cores) // int(nodes)) if nodes else len(os.sched_getaffinity(0))


def nodes_of(job: str) -> list[str]:
    """List the names of a job's nodes, in SLURM's order; [] if SLURM does not answer."""
    nodes = (_answer("squeue", "--noheader", "--jobs", job, "--format=%N") or "").strip()
    return (_answer("scontrol", "show", "hostnames", nodes) or "").split() if nodes else []


def address_of(node: str) -> str:
    """Return the address at which SLURM reaches a node; its name if SLURM does not answer."""
    answer = _answer("scontrol", "show", "node", node) or ""
    return next((word.removeprefix("NodeAddr=") for word in answer.split() if word.startswith("NodeAddr=")), node)


def has_accounting() -> bool:
    """Return True if sacct answers."""
    return _answer("sacct", "--noheader", "--allocations") is not None


def has_gpus() -> bool | None:
    """Return True if a node of some partition has GPUs; None if SLURM does not answer."""
    answer = _answer("sinfo", "--noheader", "--format=%G")
    return None if answer is None else "gpu" in answer


def gpu_types() -> list[str]:
    """List the types that partitions name their GPUs by, such as h100; [] without any, or if SLURM does not answer."""
    answer = _answer("sinfo", "--noheader", "--format=%G") or ""
    return sorted(set(re.findall(r"\bgpu:([^:,(\s]*[a-z][^:,(\s]*)", answer)))


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
