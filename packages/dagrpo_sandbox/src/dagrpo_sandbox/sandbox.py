"""One bubblewrap with an interpreter inside, and proof of its limits.

It starts it, sends programs and ends it. Deadline, output and memory are limited inside, by a process that programs can neither reach
nor kill; a sandbox that does not answer in time is killed from here. A limit that a kernel, a container or missing rights switch off must
not be missed by its effect alone: each is exceeded once per process before any program is run.
"""

import asyncio
import os
import time
from dataclasses import replace

from dagrpo_sandbox import inside, seccomp
from dagrpo_sandbox.bubblewrap import Installation, command, why_it_fails
from dagrpo_sandbox.isolated_process import IsolatedProcess
from dagrpo_sandbox.records import MEBIBYTE, Limits, Result, SandboxUnavailable, Status

START_SECONDS = 60.0  # on a machine that does much else
GRACE_SECONDS = 5.0  # after its deadline, for a program that is being ended inside
ENDINGS: dict[bytes, Status] = {
    inside.FINE: "ok",
    inside.FAILED: "error",
    inside.TIMED_OUT: "timed_out",
    inside.TOO_MUCH_OUTPUT: "output_limit",
    inside.TOO_MUCH_MEMORY: "memory_limit",
    inside.SIGNALLED: "killed",
}


class Sandbox:
    """Sandbox that runs programs one after the other. `usable`: it accepts another one.

    `broken`: it ended by itself. No program inside can cause that, but a system that is short of memory can.
    """

    def __init__(self, process: IsolatedProcess, limits: Limits) -> None:
        self.usable = True
        self.broken = False
        self.held_bytes = 0  # by the processes that wait for the next program
        self._process = process
        self._limits = limits
        self._at_work = asyncio.Lock()

    @classmethod
    async def start(cls, installation: Installation, limits: Limits, *, warm: bool) -> "Sandbox":
        """Start a sandbox and wait until it is ready. Raises SandboxUnavailable if it does not start."""
        program = _filter()
        try:
            process = IsolatedProcess(command(installation, limits, warm=warm, seccomp=program), pass_fds=(program,))
        except OSError as error:
            raise SandboxUnavailable(why_it_fails(str(error))) from error
        finally:
            os.close(program)
        try:
            await _ready(process)
        except BaseException:
            await process.end()
            raise
        return cls(process, limits)

    @property
    def has_ended(self) -> bool:
        """Return True if its process has ended."""
        return self._process.has_ended()

    async def run(self, program: str, *, keep: bool = False, seconds: float | None = None) -> Result:
        """Run a program; with `keep`, the next one has its variables. If cancelled, it ends the sandbox.

        seconds: what it may take in place of the limits' own.
        """
        seconds = seconds or self._limits.seconds
        assert self.usable, "the sandbox takes no further program"
        self.usable = False
        started = time.monotonic()
        try:
            async with self._at_work, asyncio.timeout(seconds + GRACE_SECONDS):
                result, self.usable = await self._exchange(program.encode("utf-8", "replace"), keep, seconds)
            return result
        except TimeoutError:
            return Result(stdout="", status="timed_out", seconds=time.monotonic() - started)
        except (EOFError, ConnectionError):
            self.broken = True
            return Result(stdout="", status="killed", seconds=time.monotonic() - started)
        finally:
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

    async def _exchange(self, program: bytes, keep: bool, seconds: float) -> tuple[Result, bool]:
        await self._process.write(
            inside.REQUEST.pack(len(program), seconds, keep) + inside.SIZE.pack(len(program)) + program
        )
        output = bytearray()
        while size := inside.SIZE.unpack(await self._process.read_exactly(inside.SIZE.size))[0]:
            output += await self._process.read_exactly(size)
        reply = await self._process.read_exactly(inside.REPLY.size)
        ending, seconds, usable, self.held_bytes = inside.REPLY.unpack(reply)
        return Result(stdout=output.decode("utf-8", "replace"), status=ENDINGS[ending], seconds=seconds), usable


def _filter() -> int:
    """Return a descriptor from which the system call filter can be read."""
    program, writing = os.pipe()
    os.write(writing, seccomp.bpf())  # fits into a pipe: two pages where a user has many, and else more
    os.close(writing)
    return program


async def _ready(process: IsolatedProcess) -> None:
    """Wait until the first process inside reports that it is ready. Raises SandboxUnavailable if it does not."""
    try:
        async with asyncio.timeout(START_SECONDS):
            await process.read_exactly(len(inside.READY))
            return
    except TimeoutError:
        message = f"it does not start within {START_SECONDS:.0f} seconds"
    except EOFError:
        message = process.complaint()
    raise SandboxUnavailable(why_it_fails(message))


MEMORY, SESSIONS = "memory of all processes together", "memory of sessions"
SESSION_BYTES = 8 * MEBIBYTE
EXCESSES: dict[
    str, tuple[str, Status, float]
] = {  # what takes more than each limit allows, how it ends, and after how many seconds
    "time": ("while True: pass", "timed_out", 0.1),
    "output": ("print('x' * 4096)", "output_limit", 30.0),
    MEMORY: (
        "import os, time\nfor _ in range(3):\n  if os.fork() == 0: block = b'x' * (28 << 20); time.sleep(60)\ntime.sleep(60)",
        "memory_limit",
        30.0,
    ),
    "": (  # it prints the names of limits that do not hold
        "import mmap, os, socket, time\n"
        "def run(name, excess):\n"
        "  try: excess()\n"
        "  except (OSError, MemoryError): return\n"
        "  print(name)\n"
        "def processes():\n"
        "  for _ in range(8):\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "run('memory of one process', lambda: mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))\n"
        "run('processes', processes)\n"
        "run('network', socket.socket)\n"
        "run('size of files', lambda: open('/tmp/x', 'wb').write(bytes(3 << 20)))\n"
        "run('writable folders', lambda: open('/usr/x', 'wb'))\n"
        "run('open files', lambda: [os.open('/dev/null', 0) for _ in range(64)])\n"
        "run('system calls', lambda: os.setxattr('/tmp', 'user.x', b''))\n",
        "ok",
        30.0,
    ),
}
LIMITS = Limits(seconds=30.0, memory_mb=64, processes=4, file_mb=1, descriptors=16, output_bytes=4096)
PROCESSES_ARE_SHOWN = "/proc must show a sandbox its own processes"
REMEDIES = {MEMORY: PROCESSES_ARE_SHOWN, SESSIONS: PROCESSES_ARE_SHOWN, "processes": "Linux 5.14 or newer is needed"}
_proved: set[Installation] = set()


async def prove_limits(installation: Installation) -> None:
    """Exceed every limit once per process. Raises SandboxUnavailable naming those that do not hold."""
    if installation in _proved:
        return
    answers = await asyncio.gather(*(_failed(installation, name) for name in EXCESSES), _failed_session(installation))
    failed = [name for names in answers for name in names]
    if failed:
        remedies = "; ".join(dict.fromkeys(REMEDIES[name] for name in failed if name in REMEDIES))
        raise SandboxUnavailable(
            f"the sandbox does not limit {', '.join(failed)} on this machine, and runs no programs{': ' * bool(remedies)}{remedies}"
        )
    _proved.add(installation)


async def _failed(installation: Installation, name: str) -> list[str]:
    """Return the names of limits that did not hold."""
    program, status, seconds = EXCESSES[name]
    result = await run_once(installation, program, replace(LIMITS, seconds=seconds))
    if result.status == status:
        return result.stdout.splitlines() if name == "" else []
    return [name or f"programs that ended as {result.status} ({result.stdout[-200:].strip()})"]


async def _failed_session(installation: Installation) -> list[str]:
    """Return the name of the limit of sessions if what one holds is not measured, which its pool adds up."""
    sandbox = await Sandbox.start(installation, LIMITS, warm=False)
    try:
        await sandbox.run(f"block = b'x' * {SESSION_BYTES}", keep=True)
        return [] if sandbox.held_bytes >= SESSION_BYTES else [SESSIONS]
    finally:
        await sandbox.close()


async def run_once(installation: Installation, program: str, limits: Limits) -> Result:
    """Return the result of a program in a separate sandbox. Raises SandboxUnavailable if it cannot start."""
    sandbox = await Sandbox.start(installation, limits, warm=False)
    try:
        return await sandbox.run(program)
    finally:
        await sandbox.close()
