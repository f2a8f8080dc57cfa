"""Program that makes many attempts, with JSON lines in and out.

In, one line per row: {"id", "problem", "base_url", "api_key"}, and {"cancel": id} when an attempt is given up. Out, one line per
attempt in any order: {"id"} and its reward (see report.py), or {"id", "error"}. Answers may share a line: threads that `print` do not
keep theirs apart. A program that has died is started again with the next attempt.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from dagrpo.core.untrusted_json import read_json_values
from dagrpo_agents.programs.attempt import ProgramFailure
from dagrpo_agents.programs.process import PIECE, Program, running

LONGEST_LINE = 1 << 20


class Service:
    """Program that answers requests, each with an id."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        self._command = command
        self._variables = variables
        self._folder = folder
        self._waiting: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._program: Program | None = None
        self._input: asyncio.WriteTransport | None = None
        self._starting = asyncio.Lock()
        self._reading: set[asyncio.Task[None]] = set()  # of one program, and of those before that are cleared away

    async def request(self, identifier: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return its answer. Raises ProgramFailure if it reports an error, or has died."""
        async with self._starting:
            if self._program is None:
                await self._start()
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[identifier] = answer
        self._send({"id": identifier, **body})
        try:
            result = await answer
        except asyncio.CancelledError:
            self._send({"cancel": identifier})
            raise
        finally:
            self._waiting.pop(identifier, None)
        if result.get("error"):
            raise ProgramFailure(f"The program says: {str(result['error'])[:500]}")
        return result

    def _send(self, line: Mapping[str, Any]) -> None:
        if self._input is not None:
            self._input.write(json.dumps(line).encode() + b"\n")

    async def _start(self) -> None:
        async with AsyncExitStack() as stack:
            fifo = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dagrpo-"))) / "requests"
            self._input = await _writer(fifo, stack)
            self._program = await stack.enter_async_context(
                running(self._command, variables=self._variables, input_file=fifo, log=self._folder / "program.log")
            )
            reading = asyncio.create_task(self._read(self._program, stack.pop_all()))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    async def _read(self, program: Program, resources: AsyncExitStack) -> None:
        """Pass on answers until the program ends, or writes a line too long to be one."""
        over = asyncio.create_task(_end_with_its_children(program))
        fault = await self._hand_out_all(program) or f"The program has ended: {program.last_complaint()}"
        over.cancel()
        self._program = self._input = None
        unanswered, self._waiting = self._waiting, {}  # later requests go to the next program
        await resources.aclose()
        for answer in unanswered.values():
            if not answer.done():
                answer.set_exception(ProgramFailure(fault))

    async def _hand_out_all(self, program: Program) -> str:
        """Pass on all answers; return why no more can follow, "" if the program has ended."""
        rest = b""
        while piece := await program.output.read(PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._hand_out(line)
            if len(rest) > LONGEST_LINE:
                return f"The program has written a line of more than {LONGEST_LINE >> 20} MiB."
        return ""

    def _hand_out(self, line: bytes) -> None:
        """Pass each answer on a line to the request that waits for it. Any other line is ignored."""
        try:
            values = read_json_values(line, constants=True)
        except ValueError:
            return
        for value in values:
            identifier = value.get("id") if isinstance(value, dict) else None
            answer = self._waiting.get(identifier) if isinstance(identifier, str) else None
            if answer is not None and not answer.done():
                answer.set_result(value)

    async def stop(self) -> None:
        """End it. Pending requests get no answer."""
        if self._program is not None:
            self._program.kill()
        await asyncio.gather(*self._reading)


async def _end_with_its_children(program: Program) -> None:
    """Wait for a program's end and kill its children, which would keep its output open."""
    await program.exit_code()
    program.kill()


async def _writer(fifo: Path, stack: AsyncExitStack) -> asyncio.WriteTransport:
    """Return a transport into a named pipe that a program can read from as soon as it runs."""
    os.mkfifo(fifo, mode=0o600)
    stack.callback(os.close, os.open(fifo, os.O_RDWR))  # neither end waits for the other, and it stays open
    file = stack.enter_context(os.fdopen(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0))
    transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, file)
    stack.callback(transport.abort)
    return transport


@asynccontextmanager
async def service(command: Sequence[str], variables: Mapping[str, str], folder: Path) -> AsyncIterator[Service]:
    """Open a service that is started by its first request, and ends with the context."""
    opened = Service(command, variables, folder)
    try:
        yield opened
    finally:
        await opened.stop()
