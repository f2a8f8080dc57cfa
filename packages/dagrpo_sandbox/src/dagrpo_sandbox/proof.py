"""Proof that the sandbox limits programs on this machine.

A limit that a kernel, a container or missing rights switch off must not be missed by its effect alone.
"""

import asyncio
from dataclasses import replace

from dagrpo_sandbox.bubblewrap import Installation
from dagrpo_sandbox.records import MEBIBYTE, Limits, Result, SandboxUnavailable, Status
from dagrpo_sandbox.sandbox import Sandbox

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
