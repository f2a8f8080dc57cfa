"""Launcher of several processes here: `python -m dagrpo.pipeline.launch COUNT SCRIPT ARGUMENTS...`

A failure is reported in one message, and only if rank 0 has not reported it already. The processes find each other by a file
in a folder that only their user may enter, and talk over the loopback interface: no port, no torchrun, whose own store
listens on every interface and is unpickled.

On several nodes there is one launcher on each. That of the first has `--nodes N ADDRESS SECONDS` before COUNT (`N+M`: M more nodes run
servers alone; `auto`: SLURM's address); the others `--join FILE ADDRESS:PORT`, and NODE outside SLURM. They talk over the interface of that
address (see nodes.py).
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dagrpo.core.errors import UserError
from dagrpo.core.escape import visible
from dagrpo.engine.config import FOLDER
from dagrpo.engine.nodes import failure_of
from dagrpo.pipeline.nodes import (
    SECONDS_BETWEEN_SIGNS,
    SECONDS_OF_SILENCE,
    UNSEEN,
    End,
    Launch,
    Link,
    command_for_others,
    first_node,
    joined,
    own_software,
    place_of_the_first,
    servers_of,
    wait_for_note,
)
from dagrpo.utils import slurm
from dagrpo.utils.addresses import own_address
from dagrpo.utils.child_variables import LOOPBACK, QUIET, interface_of, sockets_between_nodes
from dagrpo.utils.console import say
from dagrpo.utils.distributed import RENDEZVOUS
from dagrpo.utils.failures import MISTAKE, TRANSIENT
from dagrpo.utils.tempdirs import temporary_folder
from dagrpo.utils.watchdog import GRACE, STARTED_BY, grace_seconds

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BEYOND_GRACE = 10.0  # after a signal to stop, before processes are killed
LAUNCHED = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of this node among all."""

    here: int
    rendezvous: str  # a private file, or an address
    node: int = 0
    nodes: int = 1
    interface: str = ""  # of several nodes
    servers: Path | None = None  # folder in which nodes with servers look for their description


def launch(count: int, script: str, arguments: list[str]) -> None:
    """Run the processes, and return when all have ended well.

    Raises SystemExit with the exit code of the process that failed first, 1 if that was killed. If rank 0 could not report the
    reason, a message does.
    """
    with temporary_folder(Path(gettempdir()), "launch") as private:
        ranks = Ranks(here=count, rendezvous=str(private / "rendezvous"))
        failures = _run(ranks, script, arguments, _signals_to_stop()).failures
    if failures:
        end = _end_of(failures, ranks, script)
        _print(end.sentence)
        raise SystemExit(end.code)


def launch_first(
    nodes: int, engines: int, place: str, patience: float, count: int, script: str, arguments: list[str]
) -> None:
    """Run the first node's processes once all nodes are there. Raises SystemExit as `launch`, for processes of any node."""
    stopped_by = _signals_to_stop()
    address, port, others = place_of_the_first(None if place == "auto" else place, nodes + engines)
    described = Launch(
        script=script,
        arguments=tuple(arguments),
        processes=count,
        nodes=nodes + engines,
        engines=engines,
        address=address,
        port=port,
        patience=patience,
        grace=str(grace_seconds()),
        software=own_software(),
    )
    with first_node(described) as (link, note), _started_by_slurm(others, note, link):
        if not others:
            commands = ", ".join(f"`dagrpo join {node}`" for node in range(1, described.nodes))
            say(f"Waiting for the other machines at {address}: run {commands} on them, in this folder.")
        _wait_for_all(link, stopped_by)
        code = _run_linked(link, servers_of(note), interface_of(address), stopped_by)
        if code:
            time.sleep(2 * SECONDS_BETWEEN_SIGNS)  # the other nodes read how all ended
    raise SystemExit(code)


def launch_other(note: Path, place: str, node: int) -> None:
    """Run another node's processes. Raises SystemExit; only the first node says why, if it can be reached."""
    stopped_by = _signals_to_stop()
    os.environ.pop(STARTED_BY, None)  # a process of the first node
    address, _, port = place.rpartition(":")
    store, launched = joined(address, int(port)), wait_for_note(note)
    link = Link(store, launched or UNSEEN, node)
    del store  # which ends when the link does
    try:
        if wrong := _difference(launched, note):
            sentence = f"node {node} ({socket.gethostname()}) {wrong}"
            raise SystemExit(link.say_end(End(code=MISTAKE, sentence=sentence)).code)
        assert launched is not None
        os.environ[GRACE] = launched.grace
        _wait_for_all(link, stopped_by)
        own = own_address(address)
        if node >= launched.trainers:
            raise SystemExit(_serve(link, servers_of(note), own, stopped_by))
        raise SystemExit(_run_linked(link, None, interface_of(own), stopped_by))
    finally:
        link.close()


def _difference(launched: Launch | None, note: Path) -> str | None:
    """Return what this machine lacks of the first node's files and software; None if it has both."""
    if launched is None:
        return (
            f"does not see {note}, which the first node has written: runtime.nodes needs the project's folder on one file system, under "
            "the same path everywhere."
        )
    own = own_software()
    if own != launched.software:
        return f"has {own}; the first node has {launched.software}: use the same environment on all nodes."
    return None


def _serve(link: Link, folder: Path, address: str, stopped_by: list[signal.Signals]) -> int:
    """Run this node's servers until the ranks of all others have ended; return the exit code of all nodes."""
    number = link.node - link.launch.trainers
    servers = subprocess.Popen((sys.executable, "-m", "dagrpo.engine.nodes", str(folder), str(number), address))
    try:
        while not link.are_trainers_well:
            if stopped_by:
                link.ask_to_stop()
            if (end := _word_of_others(link)) is not None:
                return end.code
            if (code := servers.poll()) is not None:
                reason = (
                    failure_of(folder, number) or "its servers have ended: their logs are beside that of the stage."
                )
                sentence = f"node {link.node} ({socket.gethostname()}): {reason}"
                own = code if code in (MISTAKE, TRANSIENT) else 1
                return link.say_end(End(code=own, sentence=sentence, is_of_servers=True)).code
            time.sleep(SECONDS_BETWEEN_LOOKS)
        link.say_well()
        return 0
    finally:
        servers.terminate()
        servers.wait()


def _run_linked(link: Link, servers: Path | None, interface: str, stopped_by: list[signal.Signals]) -> int:
    """Run this node's processes, and return the exit code of all nodes; on the first node, after saying why."""
    launched = link.launch
    ranks = Ranks(
        here=launched.processes,
        rendezvous=link.rendezvous,
        node=link.node,
        nodes=launched.trainers,
        interface=interface,
        servers=servers if launched.engines else None,
    )
    outcome = _run(ranks, launched.script, [*launched.arguments], stopped_by, link)
    if outcome.ended_by is None and not outcome.failures:
        link.say_well()
        return 0 if link.node else _when_all_are_well(link)
    own = outcome.ended_by or _end_of(outcome.failures, ranks, launched.script)
    is_transient = own.code == TRANSIENT
    if is_transient and link.node == 0:
        own = _first_cause(link, stopped_by) or own
    counts = link.say_end(own)
    if link.node:
        return counts.code
    if not stopped_by and (is_transient or not _has_spoken(outcome.failures.get(0))):
        _print((own if is_transient else counts).sentence)  # of rank 0, that names no other process
    return own.code


def _first_cause(link: Link, stopped_by: list[signal.Signals]) -> End | None:
    """Return the end of a lost node, or of servers, that made the processes of others fail; None without one in time.

    A node that is lost is missed later than what its processes did. A word on another node's processes is no cause: they fail, too,
    when one of this node does, or of a third.
    """
    deadline = time.monotonic() + SECONDS_OF_SILENCE + 2 * SECONDS_BETWEEN_SIGNS
    while time.monotonic() < deadline and not stopped_by:
        if link.end is not None and link.end.is_of_servers:
            return link.end
        if (end := _silence(link)) is not None:
            return end
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return None


def _when_all_are_well(link: Link) -> int:
    """Wait until the ranks of every node have ended; return the exit code of all."""
    while not link.are_all_well:
        if (end := _word_of_others(link)) is not None:
            _print(end.sentence)
            return end.code
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return 0


def _wait_for_all(link: Link, stopped_by: list[signal.Signals]) -> None:
    """Wait until every node has given a sign. Raises SystemExit if one has not in time, another one ends all, or a signal came."""
    deadline = time.monotonic() + link.launch.patience
    while not link.are_all_there:
        if time.monotonic() > deadline:
            missing = ", ".join(map(str, link.missing))
            seconds = f"within {link.launch.patience:.0f} seconds (runtime.node_timeout)"
            sentence = f"training takes {link.launch.nodes} nodes, but node {missing} has not joined {seconds}: start it, and this again."
            end = link.say_end(End(code=MISTAKE, sentence=sentence))
            _print(end.sentence if link.node == 0 else "")
            raise SystemExit(end.code)
        if stopped_by:
            link.say_end(End(code=128 + stopped_by[0]))
        if (word := _word_of_others(link)) is not None:
            _print(word.sentence if link.node == 0 else "")
            raise SystemExit(word.code)
        time.sleep(SECONDS_BETWEEN_LOOKS)


@contextmanager
def _started_by_slurm(others: list[str], note: Path, link: Link) -> Iterator[None]:
    """Run the launchers of the other nodes as a step of this SLURM job; none outside of one. They end by the first node's word."""
    if not others:
        yield
        return
    step = subprocess.Popen(command_for_others(others, note, link, slurm.own_cores()))
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            step.wait(SECONDS_BEYOND_GRACE)
        step.terminate()
        step.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of this node's processes."""

    failures: dict[int, ProcessFailure]  # by rank
    ended_by: End | None = None  # a signal, or another node


def _run(
    ranks: Ranks, script: str, arguments: list[str], stopped_by: list[signal.Signals], link: Link | None = None
) -> Outcome:
    """Run the processes. If one fails, the others are ended. Raises SystemExit after a signal, without other nodes."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it logs each failure and signal
    processes = start_processes(
        name=script,
        entrypoint=sys.executable,
        args=dict.fromkeys(range(ranks.here), ("-u", script, *arguments)),
        envs={local: environment(local, ranks) for local in range(ranks.here)},
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    ended_by = None
    while (ended := processes.wait(timeout=0)) is None and not (stopped_by and ranks.node == 0):
        if link is not None:
            if stopped_by:
                link.ask_to_stop()  # the first node, whose rank 0 saves a state with the help of these ranks
            if link.is_asked_to_stop and link.node == 0:
                stopped_by.append(signal.SIGTERM)
            elif (ended_by := _word_of_others(link)) is not None:
                break
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if ended is not None:
        first = ranks.node * ranks.here
        return Outcome(failures={first + local: failure for local, failure in ended.failures.items()})
    if ended_by is not None:  # nothing can be saved any more
        processes.close(signal.SIGTERM, timeout=int(SECONDS_BETWEEN_SIGNS))
        return Outcome(failures={}, ended_by=ended_by)
    processes.close(stopped_by[0], timeout=int(grace_seconds() + SECONDS_BEYOND_GRACE))
    if link is None:
        raise SystemExit(128 + stopped_by[0])
    return Outcome(failures={}, ended_by=End(code=128 + stopped_by[0]))


def _word_of_others(link: Link) -> End | None:
    """Return why this node must end, if it must."""
    return link.end or _silence(link)


def _silence(link: Link) -> End | None:
    """Return the end by a node that gives no signs any more, if there is one."""
    silent = link.silent()
    return End(code=1, sentence=f"{silent} has ended, or cannot be reached.") if silent else None


def _end_of(failures: Mapping[int, ProcessFailure], ranks: Ranks, script: str) -> End:
    """Return exit code and sentence of the process that failed first; of rank 0, if that has said why itself."""
    rank, failure = min(failures.items(), key=lambda each: each[1].timestamp)
    sentence = ""
    if not _has_spoken(failures.get(0)):
        where = f" on node {ranks.node} ({socket.gethostname()})" if ranks.nodes > 1 else ""
        sentence = f"{script}: process {rank} of {ranks.here * ranks.nodes}{where} ended with {_ending(failure)}."
    code = (failures[0] if _has_spoken(failures.get(0)) else failure).exitcode
    return End(code=code if code > 0 else 1, sentence=sentence)


def _print(sentence: str) -> None:
    if sentence:
        print(visible(sentence), file=sys.stderr, flush=True)  # it may come over the network


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


def environment(local: int, ranks: Ranks) -> dict[str, str]:
    """Return the environment variables of one of this node's ranks that differ from this process's.

    The names are torchrun's; by the last of them a stage knows that RANK is meant for it.
    """
    numbers = {
        "RANK": ranks.node * ranks.here + local,
        "LOCAL_RANK": local,
        "WORLD_SIZE": ranks.nodes * ranks.here,
        "LOCAL_WORLD_SIZE": ranks.here,
    }
    own = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), LAUNCHED: "dagrpo"}
    return (
        {name: str(value) for name, value in numbers.items()}
        | own
        | (sockets_between_nodes(ranks.interface) | QUIET if ranks.nodes > 1 else LOOPBACK)
        | {RENDEZVOUS: ranks.rendezvous}
        | ({} if ranks.servers is None else {FOLDER: str(ranks.servers.absolute())})
    )


def _has_spoken(rank_zero: ProcessFailure | None) -> bool:
    """Return True if rank 0 ended by itself and so printed why; the others write to their logs alone."""
    return rank_zero is not None and rank_zero.exitcode > 0


def _ending(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        return f"{failure.signal_name()}, which it was sent (SIGKILL: often by a system that is short of memory)"
    return f"exit code {failure.exitcode}: its log, beside that of the stage, says why"


def main(arguments: list[str]) -> None:
    """Run the launcher that the command line asks for."""
    match arguments:
        case ["--nodes", nodes, place, patience, count, script, *rest]:
            trainers, _, engines = nodes.partition("+")
            launch_first(int(trainers), int(engines or 0), place, float(patience), int(count), script, rest)
        case ["--join", note, place, *node]:
            launch_other(Path(note), place, int(node[0]) if node else int(os.environ["SLURM_NODEID"]) + 1)
        case [count, script, *rest]:
            launch(int(count), script, rest)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        _print(f"{error}")
        raise SystemExit(MISTAKE) from None
