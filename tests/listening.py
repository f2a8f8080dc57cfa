"""What a process and all that it started listen on."""

import ipaddress
import socket

import psutil


def open_sockets(pid: int) -> list[str]:
    """Where others can reach the process and its descendants: address and command, of TCP and UDP, IPv4 and IPv6."""
    found = []
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            name, sockets = " ".join(process.cmdline()), process.net_connections("inet")
        except psutil.Error:  # it has ended in between
            continue
        found += [f"{one.laddr.ip} {one.laddr.port} {one.type.name}: {name}" for one in sockets if _is_open(one)]
    return found


def beyond_loopback(pid: int) -> list[str]:
    """Those of `open_sockets` that another machine could reach."""
    return [one for one in open_sockets(pid) if not _is_loopback(one.partition(" ")[0])]


def _is_open(one: "psutil._ntuples.pconn") -> bool:
    """A TCP socket that listens; a UDP socket that takes datagrams from anybody."""
    if one.type == socket.SOCK_DGRAM:
        return bool(one.laddr) and not one.raddr
    return bool(one.status == psutil.CONN_LISTEN)


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
