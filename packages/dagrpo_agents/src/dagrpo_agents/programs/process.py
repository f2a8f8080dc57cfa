"""Run a program with bounded output and a bounded log.

Its process gets a file as its input, and leads a separate group that cannot outlive us.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from dagrpo.core.errors import UserError
from dagrpo.utils.files import open_private_log

# The shell becomes the program; the subshell in the background waits until we have ended, and kills the group.
WATCHED = """
exec 3<&0 <"$1"
shift
(exec </dev/null >/dev/null 2>&1; read -r _ <&3; kill -KILL 0) &
exec 3<&-
exec "$@"
"""
PIECE = 1 << 16  # bytes read at once
LOG_BYTES = 1 << 20
LAST_COMPLAINTS = 1 << 12  # bytes
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_FOR_THE_REST = 1.0  # of an output whose program has ended


class Program:
    """Running program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._complaints = b""
        assert process.stdout is not None
        self.output = process.stdout

    async def exit_code(self) -> int:
        """Wait for its end and return its exit code; negative: the signal that ended it. Its children may still hold its output open."""
        waiting = asyncio.create_task(self._process.wait())
        try:
            while self._process.returncode is None:
                await asyncio.wait([waiting], timeout=SECONDS_BETWEEN_LOOKS)
        finally:
            waiting.cancel()
        return self._process.returncode

    def kill(self) -> None:
        """Kill it and all that it started, unless they have left its group."""
        with suppress(ProcessLookupError):  # nothing of the group is left
            os.killpg(self._process.pid, signal.SIGKILL)

    async def keep_log(self, log: IO[bytes]) -> None:
        """Write its stderr to its log, up to LOG_BYTES in all; drop the rest."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(PIECE):
            self._complaints = (self._complaints + piece)[-LAST_COMPLAINTS:]
            log.write(piece[: max(LOG_BYTES - log.tell(), 0)])
            log.flush()

    def last_complaint(self) -> str:
        """Return the last line of its stderr."""
        lines = self._complaints.decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it has written no error")


@asynccontextmanager
async def running(
    command: Sequence[str], *, variables: Mapping[str, str], input_file: Path, log: Path
) -> AsyncIterator[Program]:
    """Start a program with a file as its input; kill its remaining processes at the end.

    Raises UserError if it cannot be started.
    """
    with open_private_log(log) as log_file:
        async with _started(command, variables, input_file) as program:
            logging = asyncio.create_task(program.keep_log(log_file))
            try:
                yield program
            finally:
                program.kill()
                await program.exit_code()
                await asyncio.wait([logging], timeout=1.0)
                logging.cancel()


@asynccontextmanager
async def _started(command: Sequence[str], variables: Mapping[str, str], input_file: Path) -> AsyncIterator[Program]:
    lifeline, ours = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", WATCHED, "watched", str(input_file), *command),
            stdin=lifeline,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(variables),
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        raise UserError(f"{command[0]} cannot be started ({error}): correct rollout.agent.command.") from None
    finally:
        os.close(lifeline)
    try:
        yield Program(process)
    finally:
        os.close(ours)


async def read_output(program: Program, most: int, tail: int) -> tuple[bytes | None, int]:
    """Return the last `tail` bytes of its output and its exit code, once it has ended; None as output if it wrote more than `most`."""
    output = _Tail(most, tail)
    reading = asyncio.create_task(output.read(program))
    try:
        code = await program.exit_code()
        program.kill()  # what it has left behind would keep its output open
        await asyncio.wait([reading], timeout=SECONDS_FOR_THE_REST)
    finally:
        reading.cancel()
    return output.tail, code


class _Tail:
    """Buffer of the last bytes of an output."""

    def __init__(self, most: int, tail: int) -> None:
        self.tail: bytes | None = b""
        self._most = most
        self._tail = tail

    async def read(self, program: Program) -> None:
        """Read to the end. A child that has left the program's group may keep the output open for ever."""
        tail, total = b"", 0
        while piece := await program.output.read(PIECE):
            self.tail = tail = (tail + piece)[-self._tail :]
            total += len(piece)
            if total > self._most:
                program.kill()
                self.tail = None
                return
