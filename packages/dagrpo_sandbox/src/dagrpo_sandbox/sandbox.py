"""One bubblewrap with an interpreter inside, as seen from outside: starts it, hands it programs, watches, ends it.

Deadline and output are limited inside, by a process that programs can neither reach nor kill; memory is watched from here,
and a sandbox that does not answer in time is killed from here.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from asyncio.subprocess import PIPE, Process

from dagrpo_sandbox import inside, seccomp
from dagrpo_sandbox.bubblewrap import Installation, command, why_it_fails
from dagrpo_sandbox.memory import held_bytes
from dagrpo_sandbox.records import MEBIBYTE, Limits, Result, SandboxUnavailable, Status

START_SECONDS = 60.0  # on a machine that does much else
GRACE_SECONDS = 5.0  # after its deadline, for a program that is being ended inside
WATCH_SECONDS = 0.05
ENDINGS: dict[bytes, Status] = {
    inside.FINE: "ok",
    inside.FAILED: "error",
    inside.TIMED_OUT: "timed_out",
    inside.TOO_MUCH_OUTPUT: "output_limit",
    inside.SIGNALLED: "killed",
}


class Sandbox:
    """Runs programs one after the other. `usable` says whether it takes another one."""

    def __init__(self, process: Process, handle: int, first: int, limits: Limits) -> None:
        self.usable = True
        self._process = process
        self._handle = handle  # a pidfd of bubblewrap: a signal sent there reaches no other process
        self._first = first  # the pid, outside, of the first process inside
        self._limits = limits
        self._over_memory = False

    @classmethod
    async def start(cls, installation: Installation, limits: Limits, *, warm: bool) -> "Sandbox":
        """Ready for its first program. SandboxUnavailable when it does not start."""
        program, status = _filter(), os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(installation, limits, warm=warm, seccomp=program, status=status[1]),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                pass_fds=(program, status[1]),
                env={},
                start_new_session=True,
            )
        except OSError as error:
            os.close(status[0])
            raise SandboxUnavailable(why_it_fails(str(error))) from error
        finally:
            os.close(program)
            os.close(status[1])
        handle = os.pidfd_open(process.pid)
        try:
            first = await _first_process(process, status[0])
        except BaseException:
            await _end(process, handle)
            raise
        finally:
            os.close(status[0])
        return cls(process, handle, first, limits)

    async def run(self, program: str, *, keep: bool = False) -> Result:
        """What comes of a program; with `keep`, its variables are there for the next one. Cancelled, it ends the sandbox."""
        assert self.usable, "the sandbox takes no further program"
        self.usable = False
        started = time.monotonic()
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(self._limits.seconds + GRACE_SECONDS):
                result, self.usable = await self._exchange(program.encode("utf-8", "replace"), keep)
            return result
        except TimeoutError:
            return Result(stdout="", status="timed_out", seconds=time.monotonic() - started)
        except (asyncio.IncompleteReadError, ConnectionError):
            status: Status = "memory_limit" if self._over_memory else "killed"
            return Result(stdout="", status=status, seconds=time.monotonic() - started)
        finally:
            watch.cancel()
            if not self.usable:
                self.kill()

    async def close(self) -> None:
        """Nothing of it is left."""
        self.usable = False
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            await _end(self._process, handle)

    def kill(self) -> None:
        """With bubblewrap the kernel ends every process inside."""
        if self._handle >= 0:
            _kill(self._handle)

    async def _exchange(self, program: bytes, keep: bool) -> tuple[Result, bool]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(inside.REQUEST.pack(len(program), self._limits.seconds, keep) + program)
        await stdin.drain()
        ending, seconds, usable, size = inside.REPLY.unpack(await stdout.readexactly(inside.REPLY.size))
        output = (await stdout.readexactly(size)).decode("utf-8", "replace")
        return Result(stdout=output, status=ENDINGS[ending], seconds=seconds), usable

    async def _watch(self) -> None:
        """Ends the sandbox when its processes hold more than they may."""
        most = self._limits.memory_mb * MEBIBYTE
        while not self._over_memory:
            await asyncio.sleep(WATCH_SECONDS)
            self._over_memory = held_bytes(self._first, most) > most
        self.kill()


def _filter() -> int:
    """A descriptor from which the system call filter can be read."""
    program, writing = os.pipe()
    os.write(writing, seccomp.bpf())  # fits into a pipe
    os.close(writing)
    return program


async def _first_process(process: Process, status: int) -> int:
    """The pid of the first process inside, once it says that it is ready. SandboxUnavailable when it does not."""
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            if await process.stdout.read(1) == inside.READY:
                return int(json.loads(os.read(status, 4096).splitlines()[0])["child-pid"])
            message = (await process.stderr.read(4096)).decode(errors="replace")
    except TimeoutError:
        message = f"it does not start within {START_SECONDS:.0f} seconds"
    raise SandboxUnavailable(why_it_fails(message))


def _kill(handle: int) -> None:
    """Process.kill may reap the process, of which asyncio then knows nothing."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)


async def _end(process: Process, handle: int) -> None:
    _kill(handle)
    os.close(handle)
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()
