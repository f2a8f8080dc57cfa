"""Starts a script in several processes on this machine: `python -m dagrpo.launch COUNT SCRIPT ARGUMENTS...`

It is torchrun, except that a failure is told in one sentence, and only where rank 0 has not told it already.
Not for several machines.
"""

import logging
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


def launch(count: int, script: str, arguments: list[str]) -> None:
    """Return when all processes have ended well.

    SystemExit with the exit code of the process that failed first, 1 where that was killed. Where rank 0 could not say
    why, a sentence does.
    """
    # They tell of a failure in 30 lines, and of a signal.
    for name in ("torch.distributed.elastic", "torch.distributed.elastic.agent.server.api", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # What follows -- is the script's: torchrun would take its --log for an abbreviation of its own.
    options = ["--standalone", f"--nproc-per-node={count}", "--", script, *arguments]
    try:
        run.run(run.parse_args(options))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if not _has_spoken(error.failures.get(0)):
            print(f"{script}: process {rank} of {count} ended with {_ending(failure)}.", file=sys.stderr, flush=True)
        code = (error.failures[0] if _has_spoken(error.failures.get(0)) else failure).exitcode
        raise SystemExit(code if code > 0 else 1) from None
    except SignalException as stop:  # it has ended all processes already
        raise SystemExit(128 + stop.sigval) from None


def _has_spoken(rank_zero: ProcessFailure | None) -> bool:
    """Whether rank 0 ended by itself; the others write to their logs alone."""
    return rank_zero is not None and rank_zero.exitcode > 0


def _ending(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        return f"{failure.signal_name()}, which it was sent (SIGKILL: often by a system that is short of memory)"
    return f"exit code {failure.exitcode}: its log, beside that of the stage, says why"


if __name__ == "__main__":
    launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
