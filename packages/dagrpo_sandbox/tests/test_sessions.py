"""What a session's programs leave behind neither runs nor grows; a message for the next program of a sandbox."""

import asyncio
import time
from collections.abc import Iterator

import psutil
import pytest
from packages.dagrpo_sandbox.tests.running import USERS, Driver, driver
from packages.dagrpo_sandbox.tests.test_pool import in_pool

from dagrpo_sandbox import Limits, SandboxPool, Session

SIGCONT = 18
WAKERS = {
    "the server reads its output": (
        "fcntl.fcntl(1, fcntl.F_SETOWN, os.getpid())\n"
        "fcntl.fcntl(1, fcntl.F_SETSIG, 18)\n"
        "fcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC | os.O_WRONLY)"
    ),
    "a timer": (
        "event = struct.pack('<QiI48x', 0, 18, 0)\n"
        "timer = ctypes.create_string_buffer(8)\n"
        "if libc.syscall(222, 1, event, timer) < 0: raise OSError\n"
        "libc.syscall(223, int.from_bytes(timer.raw[:4], 'little'), 0, struct.pack('<4Q', 0, 10**7, 0, 10**7), 0)"
    ),
    "a terminal that hangs up": "primary, secondary = os.openpty()\nos.setsid()\nfcntl.ioctl(secondary, 0x540E, 0)",
}
LEFT_BEHIND = """
import ctypes, fcntl, os, struct, time
libc = ctypes.CDLL(None)
if os.fork() == 0:
    try:
        {waker}
    except OSError: pass
    file = open("/tmp/times", "w", buffering=1)
    while True:
        print(time.monotonic(), file=file)
        time.sleep(0.01)
time.sleep(0.1)
print("x" * 30000)
"""


@pytest.mark.parametrize("waker", WAKERS)
@in_pool(size=1)
async def test_nothing_runs_between_two_programs(pool: SandboxPool, waker: str) -> None:
    session = pool.session()
    program = LEFT_BEHIND.format(waker=WAKERS[waker].replace("\n", "\n        "))
    assert (await session.run(program)).status == "ok"
    begin = time.monotonic() + 0.1
    await asyncio.sleep(0.5)
    end = time.monotonic()
    times = [float(each) for each in (await session.run("print(open('/tmp/times').read())")).stdout.split()]
    assert times
    assert [each for each in times if begin < each < end] == []


@in_pool(size=1)
async def test_a_process_that_is_woken_all_the_same_is_stopped_again(pool: SandboxPool) -> None:
    session = pool.session()
    await session.run("import os, time\nif os.fork() == 0:\n  while True: pass")
    left = await _stopped(2)
    for process in left:
        process.send_signal(SIGCONT)
    assert await _stopped(2) == left


async def _stopped(count: int) -> list[psutil.Process]:
    """The processes below this one that are stopped, once there are as many."""
    deadline = time.monotonic() + 10
    while True:
        below = psutil.Process().children(recursive=True)
        stopped = [each for each in below if each.status() == psutil.STATUS_STOPPED]
        if len(stopped) == count or time.monotonic() > deadline:
            return stopped
        await asyncio.sleep(0.05)


@in_pool(Limits(memory_mb=128, sessions_mb=72), size=1)
async def test_sessions_together_hold_no_more_than_their_limit(pool: SandboxPool) -> None:
    """The largest is given up, which its next caller is told; the one after that begins anew."""
    sizes = (8, 24, 16, 12)
    sessions = [pool.session() for _ in sizes]
    for session, size in zip(sessions, sizes, strict=True):
        assert (await session.run(f"block = b'x' * ({size} << 20)")).status == "ok"
    assert sum(session.held_bytes for session in sessions) <= 72 << 20
    assert await _statuses(sessions, "block") == ["ok", "sessions_limit", "ok", "ok"]
    assert await _statuses(sessions, "block") == ["ok", "error", "ok", "ok"]


@pytest.mark.parametrize(
    "also", ["", "os.fork() or os._exit(0)", "open('/proc/sys/kernel/ns_last_pid', 'w').write('2')"]
)
@in_pool(size=1)
async def test_what_a_sessions_child_holds_is_counted(pool: SandboxPool, also: str) -> None:
    """Its number is later than the program's own; a program that made its own the last one again would hide it."""
    session = pool.session()
    await session.run("1")
    before = session.held_bytes
    hold = "block = b'x' * (24 << 20); os.write(filled, b'x'); time.sleep(60)"
    await session.run(
        f"import os, time\nready, filled = os.pipe()\nif os.fork() == 0:\n  {hold}\nos.read(ready, 1)\n{also}"
    )
    assert 24 << 20 <= session.held_bytes - before < 40 << 20


async def _statuses(sessions: list[Session], program: str) -> list[str]:
    return [(await session.run(program)).status for session in sessions]


SCAN = """
import os
marker = "the" + "-message-" + "of-the-first"
found = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps").readlines():
        place, rights = line.split()[:2]
        if rights.startswith("rw") and "stack" not in line:
            begin, end = (int(each, 16) for each in place.split("-"))
            memory.seek(begin)
            found += memory.read(end - begin).count((marker + "!").encode())
print(found)
"""
READINGS = {
    "the times of earlier programs": "fields = open('/proc/1/stat').read().split(); print(fields[15:17])",
    "its switches": "print([line for line in open('/proc/1/status') if 'switches' in line])",
    "its faults": "print(open('/proc/1/stat').read().split()[9:13])",
    "the times of the terminals": "s = os.stat('/dev/pts/ptmx'); print(s.st_atime_ns, s.st_mtime_ns, s.st_mode)",
    "their number": "print(open('/dev/ptmx'))",
}


@pytest.fixture(params=USERS)
def box(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with driver(request.param) as started:
        yield started


def test_neither_text_nor_output_stays_in_memory(box: Driver) -> None:
    message = "the-message-of-the-first!"
    for length in (1, 20, 400):
        assert box.run(f"print({message!r} * {length})  # {message * length}").status == "ok"
        assert int(box.run(SCAN).stdout) <= 1  # what the scan itself has just put together


@pytest.mark.parametrize("what", READINGS)
def test_what_the_server_and_terminals_count_is_hidden(box: Driver, what: str) -> None:
    assert box.run(f"import os\n{READINGS[what]}").stdout.splitlines()[-1].startswith("FileNotFoundError")


@pytest.mark.parametrize("start", ["os.fork() or os._exit(0)", "threading.Thread(target=print).start()"])
def test_the_number_of_processes_is_not_read_off_the_next(box: Driver, start: str) -> None:
    box.run("1")
    box.run(f"import os, threading\nfor _ in range(7): {start}")
    assert box.run("import os; print(os.getpid())").stdout in ("2\n", "3\n")
