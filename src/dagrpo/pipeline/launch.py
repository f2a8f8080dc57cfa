"""Start a stage's ranks by torchrun's agent.

`python -m dagrpo.pipeline.launch COUNT SCRIPT ARGUMENTS...` starts COUNT. On one machine they find each other by a file in a folder
that only their user may enter, and talk over the loopback interface: the store of a bare torchrun listens on every interface, and its
c10d rendezvous unpickles what it reads there. On several machines this runs on each (see nodes.py): the agents meet by torchrun's static
rendezvous, in a store that listens at the first one's address alone.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from threading import Event, Thread
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from dagrpo.core.errors import UserError
from dagrpo.core.escape import visible
from dagrpo.core.redaction import redacted
from dagrpo.engine.config import FOLDER, PATIENCE
from dagrpo.utils.addresses import own_address
from dagrpo.utils.child_variables import LOOPBACK, interface_of, sockets_between_nodes
from dagrpo.utils.distributed import RENDEZVOUS, TCP, listening_store
from dagrpo.utils.failures import TRANSIENT, exit_code_of
from dagrpo.utils.files import remove
from dagrpo.utils.tempdirs import temporary_folder
from dagrpo.utils.watchdog import grace_seconds

SECONDS_BEYOND_GRACE = 10  # after a signal to stop, before ranks are killed
NODE = "SLURM_PROCID"  # number of this task of `srun`, which has one on each node
STOPPED = frozenset({128 + signal.SIGTERM, 128 + signal.SIGINT})
SECONDS_TO_HEAR = 5.0  # Python hears a signal unless it waits in C++ for other nodes


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="dagrpo.pipeline.launch", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, help="that train; further ones serve the policy")
    parser.add_argument("--node", type=int, help="number of this one, from 0; in a task of srun by default the task's")
    parser.add_argument("--address", default="", help="HOST:PORT of the first of several nodes")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds until all nodes must have come")
    parser.add_argument("--servers", type=Path, help="folder in which nodes that serve find what to start")
    parser.add_argument("count", type=int, help="ranks on each node")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.node is None:
        options.node = int(os.environ.get(NODE, "0")) if options.address else 0  # a stage of one node may be any task
    return options


def run_ranks(options: argparse.Namespace) -> int:
    """Run this node's ranks until all have ended, and return the exit code.

    That is the one of the rank that failed first (of rank 0, if that has reported why), and 1 for a rank that was killed. Nodes after
    the first end well after a signal: `srun` would kill the first one, which still saves its state.
    """
    _stop_once()
    logging.disable()  # torch logs each failure and signal
    with temporary_folder(Path(gettempdir()), "launch") as private:
        where = _meet_others(options) if options.address else _meet_here(private)
        store = _opened_store(options) if options.address and options.node == 0 else None
        if options.servers is not None:
            os.environ |= {FOLDER: str(options.servers.absolute()), PATIENCE: str(options.timeout)}
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        config = LaunchConfig(
            min_nodes=options.nodes,
            max_nodes=options.nodes,
            nproc_per_node=options.count,
            run_id="dagrpo",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=str(private)),
            signals_to_handle=signal.SIGUSR2.name,  # an unused one, for there must be one: `_stop_once` handles the others
            shutdown_timeout=int(grace_seconds() + SECONDS_BEYOND_GRACE),
            **where,
        )
        config.numa_options = None  # rank 0's servers would inherit its cores
        words = ["-u", options.script, *options.arguments]
        try:
            launch_agent(config, sys.executable, [word.replace("$", "$$") for word in words])
        except SignalException as stop:
            return 0 if options.node else 128 + int(stop.sigval)
        except ChildFailedError as error:
            return _report(error.failures, options)
        except DistError as error:
            raise UserError(
                f"training takes {options.nodes} nodes, and node {options.node} has not met the others within {options.timeout:.0f} "
                f"seconds (runtime.node_timeout): start all of them ({str(error).splitlines()[0]})"
            ) from error
        finally:
            del store  # which ends when nothing refers to it
    return 0


def _meet_here(private: Path) -> dict[str, Any]:
    """Return the configuration of a rendezvous in a private folder; no port is opened for it."""
    os.environ |= LOOPBACK | {RENDEZVOUS: str(private / "ranks"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {
        "rdzv_backend": "c10d",
        "rdzv_endpoint": str(private / "agent"),
        "rdzv_configs": {"store_type": "file"},
        "local_addr": "127.0.0.1",
    }


def _meet_others(options: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration of a rendezvous with the agents of other nodes; the first one's opens the store."""
    host = options.address.rpartition(":")[0]
    own = host if options.node == 0 else own_address(host)
    os.environ |= sockets_between_nodes(interface_of(own)) | {RENDEZVOUS: f"{TCP}{options.address}"}
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": options.address,
        "rdzv_configs": {"rank": options.node, "timeout": int(options.timeout)},
        "local_addr": own,
    }


def _opened_store(options: argparse.Namespace) -> object:
    """Return a store at one address; torchrun's agent, which would open it at all of them, uses one that its process has open."""
    host, _, port = options.address.rpartition(":")
    try:
        return listening_store(host, int(port), timedelta(seconds=options.timeout))[0]
    except OSError as error:
        raise UserError(
            f"{options.address} cannot be opened ({error.strerror}): set runtime.address to an address of the first node that the other "
            "nodes reach, with a free port if it names one."
        ) from error


def _report(failures: Mapping[int, ProcessFailure], options: argparse.Namespace) -> int:
    """Print the first failure, unless rank 0 has printed it or a signal was its cause; return the exit code."""
    rank, failure = min(failures.items(), key=lambda each: (_follows(each[1]), each[1].timestamp))
    own = failures.get(0)
    if own is not None and own.exitcode > 0 and (rank == 0 or not _follows(own)):
        failure = own  # it ended by itself, and so has printed why; the others only log
    elif failure.exitcode not in STOPPED:
        _print(f"{options.script}: rank {rank} of {options.nodes * options.count} ended with {_words_of(failure)}")
    return max(1, failure.exitcode)


def _follows(failure: ProcessFailure) -> int:
    """Return 0 for a cause, 1 for what may follow from a lost rank, 2 for the signal that torchrun sends to the others."""
    return 2 if failure.exitcode in (-signal.SIGTERM, *STOPPED) else int(failure.exitcode == TRANSIENT)


def _words_of(failure: ProcessFailure) -> str:
    """Return a rank's last error, as it has recorded it; without one, how it ended."""
    if failure.exitcode < 0:
        return f"{failure.signal_name()}, which it was sent (SIGKILL: often by a system that is short of memory)."
    recorded: Any = failure.error_file_data.get("message")
    if isinstance(recorded, dict) and "message" in recorded:
        return f"exit code {failure.exitcode}: {recorded['message']}"
    return f"exit code {failure.exitcode}: its log, beside that of the stage, says why."


def _print(sentence: str) -> None:
    print(visible(redacted(sentence)), file=sys.stderr, flush=True)


def _stop_once() -> None:
    """Let the first signal to stop end the ranks. torchrun's own handler lets a second one interrupt that.

    While this waits for other nodes, in C++, no handler runs: a thread then ends the process, which has no ranks yet.
    """
    heard, (reader, writer) = Event(), os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

    def end_unheard() -> None:
        while (number := os.read(reader, 1)[0]) not in numbers:
            pass
        if not heard.wait(SECONDS_TO_HEAR):
            os._exit(128 + number)

    def stop(number: int, frame: FrameType | None) -> None:
        heard.set()
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SignalException("stopped", signal.Signals(number))

    for number in numbers:
        signal.signal(number, stop)
    Thread(target=end_unheard, daemon=True).start()


def main() -> None:
    """Run what is this node's. Raises SystemExit."""
    options = parse()
    try:
        if options.node < options.nodes:
            raise SystemExit(run_ranks(options))
        from dagrpo.engine.nodes import serve

        for number in (signal.SIGTERM, signal.SIGINT):  # `srun` would kill ranks that still save their state
            signal.signal(number, lambda number, frame: sys.exit(0))
        os.umask(0o077)
        serve(options.servers, options.node - options.nodes, own_address(options.address.rpartition(":")[0]))
    except UserError as error:
        _print(str(error))
        raise SystemExit(exit_code_of(error)) from None
    finally:
        if options.node == 0 and options.servers is not None:
            remove(options.servers)  # by which nodes that serve know the end


if __name__ == "__main__":
    main()
