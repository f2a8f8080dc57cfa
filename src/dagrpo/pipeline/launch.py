"""Launcher of several processes here: `python -m dagrpo.pipeline.launch COUNT SCRIPT ARGUMENTS...`

A failure is reported in one message, and only if rank 0 has not reported it already. The processes find each other by a file
in a folder that only their user may enter, and talk over the loopback interface: no port, no torchrun, whose own store
listens on every interface and is unpickled. Not for several machines.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import gettempdir

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dagrpo.utils.child_variables import LOOPBACK
from dagrpo.utils.distributed import RENDEZVOUS
from dagrpo.utils.tempdirs import temporary_folder
from dagrpo.utils.watchdog import grace_seconds

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BEYOND_GRACE = 10.0  # after a signal to stop, before processes are killed


def launch(count: int, script: str, arguments: list[str]) -> None:
    """Run the processes, and return when all have ended well.

    Raises SystemExit with the exit code of the process that failed first, 1 if that was killed. If rank 0 could not report the
    reason, a message does.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it logs each failure and signal
    with temporary_folder(Path(gettempdir()), "launch") as private:
        failures = _run(count, script, arguments, private / "rendezvous")
    if not failures:
        return
    rank, failure = min(failures.items(), key=lambda each: each[1].timestamp)
    if not _has_spoken(failures.get(0)):
        print(f"{script}: process {rank} of {count} ended with {_ending(failure)}.", file=sys.stderr, flush=True)
    code = (failures[0] if _has_spoken(failures.get(0)) else failure).exitcode
    raise SystemExit(code if code > 0 else 1)


def _run(count: int, script: str, arguments: list[str], rendezvous: Path) -> dict[int, ProcessFailure]:
    """Run the processes and return failures by rank. If one fails, the others are ended; a signal ends all, with SystemExit."""
    stopped_by = _signals_to_stop()
    processes = start_processes(
        name=script,
        entrypoint=sys.executable,
        args=dict.fromkeys(range(count), ("-u", script, *arguments)),
        envs={rank: environment(rank, count, rendezvous) for rank in range(count)},
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    while (ended := processes.wait(timeout=0)) is None and not stopped_by:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if ended is None:
        processes.close(stopped_by[0], timeout=int(grace_seconds() + SECONDS_BEYOND_GRACE))
        raise SystemExit(128 + stopped_by[0])
    return ended.failures


def _signals_to_stop() -> list[signal.Signals]:
    """Return the list to which received signals are appended, in order.

    Not as torch's exception, which a second signal raises again while the processes are being closed: the threads that follow their
    output are then never stopped, and the launcher waits for them for ever.
    """
    came: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, frame: came.append(signal.Signals(number)))
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signal.SIGUSR2.name  # an unused signal, for there must be one
    return came


def environment(rank: int, count: int, rendezvous: Path) -> dict[str, str]:
    """Return one rank's environment variables that differ from this process's.

    The names are torchrun's; by the last of them a stage knows that RANK is meant for it.
    """
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    own = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "TORCHELASTIC_RUN_ID": "dagrpo"}
    return {name: str(value) for name, value in ranks.items()} | own | LOOPBACK | {RENDEZVOUS: str(rendezvous)}


def _has_spoken(rank_zero: ProcessFailure | None) -> bool:
    """Return True if rank 0 ended by itself and so printed why; the others write to their logs alone."""
    return rank_zero is not None and rank_zero.exitcode > 0


def _ending(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        return f"{failure.signal_name()}, which it was sent (SIGKILL: often by a system that is short of memory)"
    return f"exit code {failure.exitcode}: its log, beside that of the stage, says why"


if __name__ == "__main__":
    launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
