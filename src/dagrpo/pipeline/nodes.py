"""Start a training on several nodes.

In a job of SLURM `srun` does it, else a script that a person runs on the other machines.
"""

import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex

from dagrpo.core.errors import UserError
from dagrpo.pipeline.record import STATES
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils import slurm
from dagrpo.utils.addresses import free_port, no_address, own_address
from dagrpo.utils.child_variables import QUIET
from dagrpo.utils.console import say
from dagrpo.utils.files import remove
from dagrpo.utils.watchdog import GRACE, grace_seconds

TORCHRUN_PORT = 29500  # its default
LAUNCHES = STATES / "launches"  # of each training on several nodes: the script for the others, a folder of servers


@contextmanager
def command_on_nodes(runtime: Runtime, processes: int, words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the command that runs a script, with its arguments, in `processes` ranks on each node that trains; further nodes serve.

    Raises UserError if the job has too few nodes, or there is no job and no runtime.address.
    """
    count = runtime.nodes + runtime.engine.nodes
    names = _names_in_slurm(count)
    address = _address(runtime.address, names, count)
    folder = LAUNCHES / f"{time.time_ns()}-{token_hex(4)}"
    folder.mkdir(mode=0o700, parents=True)  # servers write their keys there
    launch = [sys.executable, "-m", "dagrpo.pipeline.launch", "--nodes", str(runtime.nodes), "--address", address]
    launch += ["--timeout", str(runtime.node_timeout), *(["--servers", str(folder)] if runtime.engine.nodes else [])]
    ranks = [str(processes), *words]
    script = folder.with_suffix(".sh")
    try:
        if names:
            yield [*_srun(names, slurm.own_cores()), *launch, *ranks]
            return
        variables = [f"{name}={value}" for name, value in {GRACE: str(grace_seconds()), **QUIET}.items()]
        script.write_text(f'exec env {shlex.join([*variables, *launch])} --node "$1" {shlex.join(ranks)}\n')
        say(
            f"Waiting for the other machines at {address}: on each, run `sh {script} NODE` in this folder, with NODE from 1 to {count - 1}."
        )
        yield [*launch, "--node", "0", *ranks]
    finally:
        script.unlink(missing_ok=True)
        remove(folder)


def _names_in_slurm(count: int) -> list[str]:
    """List the first `count` nodes of this job; [] outside of SLURM."""
    job = slurm.own_job()
    if not job:
        return []
    names = slurm.nodes_of(job)
    if len(names) < count:
        raise UserError(
            f"training takes {count} machines (runtime.nodes, runtime.engine.nodes), and SLURM "
            f"job {job} has {len(names)}: submit it through profiles/slurm, or ask for {count} nodes."
        )
    return names[:count]


def _address(named: str | None, names: Sequence[str], count: int) -> str:
    """Return HOST:PORT of the first node, at which all others meet it."""
    if named is not None:
        host, _, port = named.partition(":")
        host = _resolved(host)
    elif names:
        is_first = slurm.own_node() == names[0]  # whose own name may mean an address that others do not reach
        host = own_address(slurm.address_of(names[1])) if is_first else _resolved(slurm.address_of(names[0]))
        port = ""
    else:
        raise no_address(count)
    if not port:
        try:
            port = str(free_port(host))
        except OSError:  # the first node is another machine
            port = str(TORCHRUN_PORT)
    return f"{host}:{port}"


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UserError(
            f"{host} is not known here ({error.strerror}): set runtime.address to an IPv4 address."
        ) from error


def _srun(names: Sequence[str], cores: int) -> list[str]:
    """Return the words with which SLURM runs a command on each of these nodes, until one fails or all have ended."""
    count = str(len(names))
    return [
        *("srun", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--input=none"),
        *(f"--nodelist={','.join(names)}", f"--cpus-per-task={cores}", "--cpu-bind=none", "--mem=0"),
        *("--kill-on-bad-exit=1", "--disable-status"),  # the latter: Ctrl-C reaches the ranks
    ]
