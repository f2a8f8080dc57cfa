"""Addresses and ports of this machine."""

import socket

from dagrpo.core.errors import UserError
from dagrpo.utils import slurm


def own_address(other: str, port: int = 9) -> str:
    """Return the address with which this machine reaches another one. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, port))
        except OSError as error:
            raise UserError(
                f"this machine finds no way to {other} ({error.strerror}): name an address that it reaches."
            ) from error
        return str(probe.getsockname()[0])


def free_port(address: str, wanted: int = 0) -> int:
    """Return a port of an address of this machine that is free now, or the wanted one. Raises OSError if it is taken."""
    with socket.socket() as found:
        if wanted:  # as a server binds it: connections of the one before may be in TIME_WAIT
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, wanted))
        return int(found.getsockname()[1])


def require_address(address: str | None, nodes: int) -> None:
    """Raise UserError if a training of several nodes has no address, and does not run in SLURM."""
    if nodes > 1 and address is None and not slurm.own_job():
        raise no_address(nodes)


def no_address(nodes: int) -> UserError:
    """Return the error of a training of several nodes that has no address."""
    return UserError(
        f"training takes {nodes} machines (runtime.nodes, runtime.engine.nodes), but no address is named: set runtime.address to one "
        "of this machine's that the other nodes reach, or run this in SLURM (profiles/slurm)."
    )
