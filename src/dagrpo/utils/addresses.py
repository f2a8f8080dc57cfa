"""Addresses and ports of this machine."""

import socket

from dagrpo.core.errors import UserError


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


def free_port(address: str) -> int:
    """Return a port of an address of this machine that is free now."""
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])
