"""Limits of a program, and its result."""

from dataclasses import dataclass
from typing import Literal

Status = Literal[
    "ok",
    "error",  # an exception, or an exit code other than 0: what it printed says which
    "timed_out",
    "output_limit",
    "memory_limit",  # of all its processes together; one process alone gets a MemoryError, which is an error
    "sessions_limit",  # it was not run: sessions together held too much memory, and this one most, so that it lost its variables
    "killed",  # it ended by a signal, or took its sandbox down
]
MEBIBYTE = 1 << 20


class SandboxUnavailable(Exception):
    """Error where no program can be isolated. Its message says why, and what to do about it. Nothing was run."""


class SandboxClosed(SandboxUnavailable):
    """Error of a session or pool that was closed before the program had run to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one call."""

    seconds: float = 10.0  # of the clock
    memory_mb: int = 512  # MiB: of address space in one process, and resident in all together
    sessions_mb: int = 4096  # MiB: resident in all sessions of a pool together, while they wait for their next program
    processes: int = 16  # threads among them
    output_bytes: int = 65536  # of stdout and stderr together
    file_mb: int = 16  # MiB: one file, and all of /tmp together
    descriptors: int = 64  # open in one process


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a program."""

    stdout: str  # and stderr, in the order in which they were written; undecodable bytes replaced
    status: Status
    seconds: float  # of the clock, from the program's start to its end
