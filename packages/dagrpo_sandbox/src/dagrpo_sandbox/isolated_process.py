"""Process of bubblewrap and its pipes, for asyncio.

asyncio's own subprocesses can be cancelled while they start, and then wait for pipes that a half-started bubblewrap keeps open. Here a
process is started at once or not at all, and killed with all of its group.
"""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence

CHUNK = 65536


class IsolatedProcess:
    """Process in a separate session, with pipes that do not block."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int]) -> None:
        """Start the command. Raises OSError if it cannot be started."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=pass_fds, env={}, start_new_session=True, bufsize=0
        )
        self._handle = os.pidfd_open(self._process.pid)  # readable when it has ended
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._stderr = self._process.stderr.fileno()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        self._ended = False
        self._read = bytearray()  # from stdout, and not asked for yet

    async def write(self, data: bytes) -> None:
        """Write all of the data. Raises ConnectionError if the process reads no more."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._stdin, rest[:CHUNK]) :]
            except BlockingIOError:
                await _writable(self._stdin)

    async def read_exactly(self, size: int) -> bytes:
        """Read `size` bytes. Raises EOFError if the process ends before."""
        while len(self._read) < size:
            try:
                chunk = os.read(self._stdout, CHUNK)
            except BlockingIOError:
                await _readable(self._stdout)
                continue
            if not chunk:
                raise EOFError
            self._read += chunk
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    def has_ended(self) -> bool:
        """Return True if it has ended, or is about to."""
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        return bool(ended.poll(0))

    def complaint(self) -> str:
        """Return its output on stderr."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._stderr, 4096).decode(errors="replace")
        return ""

    def kill(self) -> None:
        """Kill the whole group: bubblewrap's child is not bound to it from the first moment on, but is in its group until it is."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill and reap it, and close its pipes, also if this is cancelled."""
        if self._ended:
            return
        self.kill()
        self._ended = True
        try:
            await _readable(self._handle)
        finally:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()
            os.close(self._handle)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _called(descriptor, loop.add_reader, loop.remove_reader)


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _called(descriptor, loop.add_writer, loop.remove_writer)


async def _called(descriptor: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    """Wait until the loop calls back for a descriptor."""
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)
