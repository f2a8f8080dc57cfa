"""Child process that answers each line with a line, with a timeout.

It runs a module of dagrpo, and is used by one thread at a time. The caller defines the lines, and the meaning of no answer.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

PIECE = 1 << 20  # bytes read at once


class LineProcess:
    """A child process of a module; its first line, before any question, signals that it is ready."""

    def __init__(self, module: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Start the process unless it runs; return True if it was started. It warms up by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it died while idle
        if self._process is not None:
            return False
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | self._variables,
            start_new_session=True,
        )
        return True

    def exchange(self, line: bytes, seconds: float) -> bytes | None:
        """Send a line and return the answer; None if the process takes too long or ends."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        with suppress(BrokenPipeError):  # it has ended; reading reports that
            _write(self._process.stdin, line)
        return _read_line(self._process.stdout, deadline)

    def kill(self) -> None:
        """End the process and all that it may have started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _write(pipe: IO[bytes], line: bytes) -> None:
    """Write the whole line: a pipe may take a part at a time."""
    rest = memoryview(line)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read_line(pipe: IO[bytes], deadline: float) -> bytes | None:
    readable = select.poll()
    readable.register(pipe, select.POLLIN)
    line = bytearray()
    while (left := deadline - time.monotonic()) > 0 and readable.poll(left * 1000):
        received = os.read(pipe.fileno(), PIECE)
        line += received
        if not received or line.endswith(b"\n"):
            return bytes(line) or None
    return None
