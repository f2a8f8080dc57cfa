"""Locks: one run at a time per experiment, by Snakemake or DVC.

A run also holds DVC's own lock, so that a `dvc` command stops before it removes anything. A run that DVC drives waits for its turn,
because DVC has already removed what this run is to make again. Override runs, which DVC does not know, may run beside all of them.

Jobs in SLURM outlive a run that is killed: the next one waits for their end.
"""

import atexit
import math
import os
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.private import DVC_FOLDER, lock_of_dvc, process_in_lock_of_dvc
from dagrpo.pipeline.override_runs import TRY
from dagrpo.pipeline.record import STATES
from dagrpo.pipeline.runner import dvc_drives
from dagrpo.pipeline.snakemake_private import locks_of
from dagrpo.utils import slurm
from dagrpo.utils.console import say
from dagrpo.utils.files import write_json
from dagrpo.utils.locks import (
    SECONDS_BETWEEN_QUESTIONS,
    Holder,
    Process,
    command_of,
    exclusive_access,
    is_silent,
    noted_holder,
)
from dagrpo.utils.watchdog import end_with

RUNNING = STATES / "running"
DRIVER = STATES / "dvc.json"  # the DVC that is at work here, or was
_taken = ExitStack()  # until the process ends
atexit.register(_taken.close)


def hold(experiment: str) -> None:
    """Lock this experiment's folders until this process ends. Raises UserError naming another process that holds them.

    Under DVC it waits. A lock left by a killed run of Snakemake for this experiment is removed.
    """
    if dvc_drives():
        _take(experiment, patience=math.inf)
        write_json(DRIVER, asdict(_driver()))
        _lock_out_dvc(experiment, wait=True)
        if (above := driver()) is not None and above.process != Process.current():
            own, since = os.getpid(), _text_of(time.time())
            end_with(  # until this run has ended, DVC says only that there is a lock
                above.process.pid,
                f"{above} is gone: this run of its stage, process {own} since {since} in {Path.cwd()}, saves its state and ends, for up "
                f"to a minute. DVC's lock is free then: give the same command again, after `kill {own}` if it has not ended.",
            )
        return
    known_to_dvc = TRY not in experiment
    if known_to_dvc and (at_work := driver()) is not None:  # also between two of its stages, where it holds no lock
        raise UserError(f"{at_work} is at work in this folder: wait for it to end, or stop it.")
    _take(experiment, patience=0)
    if known_to_dvc:
        _lock_out_dvc(experiment, wait=False)


def is_run_by_another(experiment: str) -> bool:
    """Return True if another process runs the experiment now."""
    if not lock_of(experiment).exists():
        return False
    try:
        with FileLock(lock_of(experiment), timeout=0):
            return False
    except Timeout:
        return True


def runner_of(experiment: str) -> Holder | None:
    """Return the recorded process that runs the experiment now, if any. For observers: takes no lock.

    For another machine only Snakemake's own locks show whether the run is still active.
    """
    owner = noted_holder(_file(experiment))
    if owner is None or owner.process.is_gone:
        return None
    if owner.process.is_here:
        return owner
    return owner if locks_of(experiment) and not is_silent(_file(experiment)) else None


def note_executor(experiment: str, executor: str, jobs: str) -> None:
    """Note the executor that gets this run's jobs, and their name in SLURM's queue, for a run after this one was killed."""
    owner = noted_holder(_file(experiment))
    if owner is not None:
        cluster = slurm.own_cluster() if jobs else ""
        write_json(_file(experiment), asdict(replace(owner, executor=executor, jobs=jobs, cluster=cluster)))


def driver() -> Holder | None:
    """Return the `dvc repro` at work in this folder, if any. Between two of its stages no run is active."""
    holder = noted_holder(DRIVER)
    return holder if holder is not None and holder.process.is_here and not holder.process.is_gone else None


def _take(experiment: str, patience: float) -> None:
    former = noted_holder(_file(experiment))
    _taken.enter_context(exclusive_access(Path("results", experiment), lock_of(experiment), patience))
    if former is not None:
        write_json(_file(experiment), asdict(former))  # until its jobs have ended, also where this process ends before
        if former.executor and locks_of(experiment):  # else it has ended by itself, after its jobs
            _wait_for_jobs(experiment, former)
        for lock in locks_of(experiment):  # they name no owner, and would block every later run until --unlock
            lock.unlink(missing_ok=True)
        write_json(_file(experiment), asdict(Holder(process=Process.current(), command=command_of(sys.argv))))


def lock_of(experiment: str) -> Path:
    """Return the file that a run of the experiment keeps locked."""
    return RUNNING / f"{experiment}.lock"


def _file(experiment: str) -> Path:
    return RUNNING / f"{experiment}.json"


def _text_of(moment: float) -> str:
    return datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S")


def _driver() -> Holder:
    """Return the DVC above this process."""
    for parent in psutil.Process().parents():
        try:
            words, process = parent.cmdline(), Process.running(parent.pid)
        except (psutil.Error, ProcessLookupError):  # gone, or another user's
            continue
        if any(Path(word).name == "dvc" for word in words[:2]):
            return Holder(process=process, command=command_of(words))
    return Holder(process=Process.current(), command=command_of(sys.argv))


def _lock_out_dvc(experiment: str, *, wait: bool) -> None:
    """Exclude every other `dvc` command until this process ends, including `dvc checkout`, with which `dvc exp run` begins.

    Raises UserError if another process has it.
    """
    if not DVC_FOLDER.is_dir():
        return
    release = lock_of_dvc(wait=wait)
    if release is None:
        raise UserError(f"{_who_has_dvcs_lock(experiment)}: wait for it to end, or stop it.")
    _taken.callback(release)


def _who_has_dvcs_lock(experiment: str) -> str:
    for lock in sorted(RUNNING.glob("*.lock")):
        other = lock.stem
        if other != experiment and TRY not in other and is_run_by_another(other):
            runner = noted_holder(_file(other)) or "another process"
            return f"{other} is being run by {runner}, and only override runs may run beside an experiment"
    with suppress(psutil.Error, ProcessLookupError):  # it has just ended
        process = psutil.Process(process_in_lock_of_dvc())
        since = _text_of(process.create_time())
        holder = Holder(process=Process.running(process.pid), command=command_of(process.cmdline()))
        return f"{holder}, since {since}, is at work in {Path.cwd()}"
    return f"A DVC command is at work in {Path.cwd()}"


def _wait_for_jobs(experiment: str, owner: Holder) -> None:
    """Wait until none of the jobs of a killed run waits or runs. Raises UserError if they cannot be asked about."""
    shown = None
    while jobs := slurm.jobs_named(owner.jobs, owner.cluster) if owner.jobs else None:
        names = ", ".join(f"{job.number} ({job.comment})" for job in jobs)
        if names != shown:
            say(f"Waiting for jobs in SLURM of {owner}, which is gone: {names}. `scancel` ends one.")
        shown = names
        time.sleep(SECONDS_BETWEEN_QUESTIONS)
    if jobs is None:
        of_cluster = f" of the cluster {owner.cluster}" if owner.cluster else ""
        traces = ", ".join(map(str, (_file(experiment), *locks_of(experiment))))
        raise UserError(
            f"Jobs that {owner} gave to {owner.executor}{of_cluster} may be at work, and this machine cannot ask: start this where "
            f"`squeue` answers, or, if they have certainly ended, delete {traces}."
        )
