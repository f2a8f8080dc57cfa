"""Run one bubblewrap with an interpreter inside, from outside.

It starts it, sends programs, watches and ends it. Deadline and output are limited inside, by a process that programs can neither reach
nor kill; memory is watched from here, and a sandbox that does not answer in time is killed from here.
"""

import asyncio
import json
import os
import time

from dagrpo_sandbox import inside, seccomp
from dagrpo_sandbox.bubblewrap import Installation, command, why_it_fails
from dagrpo_sandbox.isolated_process import IsolatedProcess
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
    """Sandbox that runs programs one after the other. `usable`: it accepts another one.

    `broken`: it ended by itself. No program inside can cause that, but a system that is short of memory can.
    """

    def __init__(self, process: IsolatedProcess, first: int, limits: Limits) -> None:
        self.usable = True
        self.broken = False
        self._process = process
        self._first = first  # the pid, outside, of the first process inside
        self._limits = limits
        self._over_memory = False
        self._at_work = asyncio.Lock()

    @classmethod
    async def start(cls, installation: Installation, limits: Limits, *, warm: bool) -> "Sandbox":
        """Start a sandbox and wait until it is ready. Raises SandboxUnavailable if it does not start."""
        program, status = _filter(), os.pipe()
        try:
            line = command(installation, limits, warm=warm, seccomp=program, status=status[1])
            process = IsolatedProcess(line, pass_fds=(program, status[1]))
        except OSError as error:
            os.close(status[0])
            raise SandboxUnavailable(why_it_fails(str(error))) from error
        finally:
            os.close(program)
            os.close(status[1])
        try:
            first = await _first_process(process, status[0])
        except BaseException:
            await process.end()
            raise
        finally:
            os.close(status[0])
        return cls(process, first, limits)

    @property
    def has_ended(self) -> bool:
        """Return True if its process has ended."""
        return self._process.has_ended()

    async def run(self, program: str, *, keep: bool = False) -> Result:
        """Run a program; with `keep`, the next one has its variables. If cancelled, it ends the sandbox."""
        assert self.usable, "the sandbox takes no further program"
        self.usable = False
        started = time.monotonic()
        watch = asyncio.create_task(self._watch())
        try:
            async with self._at_work, asyncio.timeout(self._limits.seconds + GRACE_SECONDS):
                result, self.usable = await self._exchange(program.encode("utf-8", "replace"), keep)
            return result
        except TimeoutError:
            return Result(stdout="", status="timed_out", seconds=time.monotonic() - started)
        except (EOFError, ConnectionError):
            self.broken = not self._over_memory
            status: Status = "killed" if self.broken else "memory_limit"
            return Result(stdout="", status=status, seconds=time.monotonic() - started)
        finally:
            watch.cancel()
            if not self.usable:
                self.kill()

    async def close(self) -> None:
        """End it without remains. A running program is killed, and its caller gets that result first."""
        self.usable = False
        self.kill()
        async with self._at_work:  # it reads from pipes that are about to be closed
            await self._process.end()

    def kill(self) -> None:
        """Kill bubblewrap, with which the kernel ends every process inside."""
        self._process.kill()

    async def _exchange(self, program: bytes, keep: bool) -> tuple[Result, bool]:
        await self._process.write(inside.REQUEST.pack(len(program), self._limits.seconds, keep) + program)
        ending, seconds, usable, size = inside.REPLY.unpack(await self._process.read_exactly(inside.REPLY.size))
        output = (await self._process.read_exactly(size)).decode("utf-8", "replace")
        return Result(stdout=output, status=ENDINGS[ending], seconds=seconds), usable

    async def _watch(self) -> None:
        """End the sandbox once its processes hold more memory than allowed."""
        most = self._limits.memory_mb * MEBIBYTE
        while not self._over_memory:
            await asyncio.sleep(WATCH_SECONDS)
            self._over_memory = held_bytes(self._first, most) > most
        self.kill()


def _filter() -> int:
    """Return a descriptor from which the system call filter can be read."""
    program, writing = os.pipe()
    os.write(writing, seccomp.bpf())  # fits into a pipe
    os.close(writing)
    return program


async def _first_process(process: IsolatedProcess, status: int) -> int:
    """Return the pid of the first process inside, once it reports that it is ready. Raises SandboxUnavailable if it does not."""
    try:
        async with asyncio.timeout(START_SECONDS):
            await process.read_exactly(len(inside.READY))
            return int(json.loads(os.read(status, 4096).splitlines()[0])["child-pid"])
    except TimeoutError:
        message = f"it does not start within {START_SECONDS:.0f} seconds"
    except EOFError:
        message = process.complaint()
    raise SandboxUnavailable(why_it_fails(message))
