"""Programs that try to get out, to see what is not theirs, to stay, or to take more than they may. As root and as nobody."""

import platform
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from packages.dagrpo_sandbox.tests.running import USERS, WITHOUT_PTRACE, Driver, driver, program_of

CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    return "done" if result >= 0 else ctypes.get_errno()
"""
EPERM = 1


# What holds for the user of the tests every day is asked for an unprivileged one at night.
EVERY_USER = [USERS[0], *(pytest.param(user, marks=pytest.mark.nightly) for user in USERS[1:])]


@pytest.fixture(scope="module", params=EVERY_USER)
def box(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with driver(request.param) as started:
        yield started


X86_64 = platform.machine() == "x86_64"  # whose numbers of system calls, and whose second ABI, these are
# What a program prints that looks for what is outside, asks the kernel for rights, or changes its limits or its server's.
PRINTS = {
    "folders of the machine": (
        "import os; print(sorted(set(os.listdir('/')) - {'lib', 'lib32', 'lib64', 'python'}))",
        "['bin', 'dev', 'proc', 'tmp', 'usr']\n",
    ),
    "the network": (
        "import socket\n"
        "for address in ('1.1.1.1', '127.0.0.1'):\n"
        "  try: socket.create_connection((address, 53), 2)\n"
        "  except OSError as error: print(error.errno)",
        f"{EPERM}\n{EPERM}\n",
    ),
    "processes": (  # the server, and the program
        "import os; print(len([name for name in os.listdir('/proc') if name.isdigit()]))",
        "2\n",
    ),
    "descriptors": (
        "import os\n"
        "for name in sorted(os.listdir('/proc/self/fd'))[:-1]: print(name, os.readlink('/proc/self/fd/' + name).split(':')[0])",
        "0 /dev/null\n1 pipe\n2 pipe\n3 pipe\n4 pipe\n",
    ),
    "rights": (
        "for line in open('/proc/self/status'):\n"
        "  if line.startswith(('Uid', 'CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp:')): print(*line.split())",
        "Uid: 65534 65534 65534 65534\nCapEff: 0000000000000000\nCapBnd: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n",
    ),
    "mounts and namespaces": (
        CALL + "print(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), ctypes.get_errno())\n"
        "print(libc.unshare(0x10000000), ctypes.get_errno())\n"
        "print(libc.setns(0, 0), ctypes.get_errno())\n",
        f"-1 {EPERM}\n" * 3,
    ),
    **(
        {"a user namespace by clone": (CALL + "print(call(56, 0x10000000 | 17, 0, 0, 0, 0))", f"{EPERM}\n")}
        if X86_64
        else {}
    ),
    "its limits": (
        "import resource\n"
        "for name in ('AS', 'FSIZE', 'NPROC', 'NOFILE', 'CORE', 'CPU'):\n"
        "  try: resource.setrlimit(getattr(resource, 'RLIMIT_' + name), (resource.RLIM_INFINITY,) * 2); print('raised')\n"
        "  except (ValueError, OSError): pass\n",
        "",
    ),
    "the server's limits and priorities": (
        "import os, resource\n"
        "tries = [lambda: resource.prlimit(1, resource.RLIMIT_AS, (1, 1)), lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),\n"
        "         lambda: os.sched_setaffinity(1, {0}), lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))]\n"
        "for each in tries:\n"
        "  try: each(); print('changed')\n"
        "  except PermissionError: pass\n",
        "",
    ),
    "the server in proc": ("import os; print(os.listdir('/proc/1'))", "[]\n"),
    "locks of ranges, which take no memory": (
        "import fcntl, os\nfile = open('/tmp/x', 'w')\n"
        "for place in range(100): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)\n"
        "print(len([line for line in open('/proc/locks') if f' {os.getpid()} ' in line]))",
        "0\n",
    ),
}


@pytest.mark.parametrize("what", PRINTS)
def test_what_is_outside_is_not_there_and_nothing_can_be_asked_of_the_kernel(box: Driver, what: str) -> None:
    program, printed = PRINTS[what]
    result = box.run(program)
    assert (result.status, result.stdout) == ("ok", printed)


def test_the_callers_environment_is_not_there(box: Driver) -> None:
    allowed = {
        *("PATH", "LANG", "LC_CTYPE", "PWD", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
        *("MALLOC_ARENA_MAX", "LD_LIBRARY_PATH"),
    }
    result = box.run("import os; print(*os.environ)")
    assert result.status == "ok"
    assert set(result.stdout.split()) <= allowed


REFUSED = {
    "open('/etc/shadow')": "FileNotFoundError",
    "import os; os.symlink('/etc/passwd', '/tmp/link'); open('/tmp/link')": "FileNotFoundError",
    **{f"open('{path}/x', 'w')": "Read-only file system" for path in ("", "/usr", "/dev", "/usr/lib", "/bin")},
    "import os; os.setuid(0)": "Error",
    "import threading, time\nfor i in range(200): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": (
        "can't start new thread"
    ),
    "bytearray(10 << 30)": "MemoryError",
    "file = open('/tmp/x', 'wb')\nwhile True: file.write(b'0' * (1 << 20))": "File too large",
    "for name in range(64): open(f'/tmp/{name}', 'wb').write(b'0' * (1 << 20))": "No space left on device",
}


@pytest.mark.parametrize("program", REFUSED)
def test_what_a_program_may_not_do_is_an_error_in_it(box: Driver, program: str) -> None:
    result = box.run(program)
    assert result.status == "error"
    assert REFUSED[program] in result.stdout.splitlines()[-1]


HIDDEN = {  # memory, on x86_64
    "by a process whose first thread has ended": """
import ctypes, os, threading, time
def hold():
    block = b"x" * (100 << 20)
    time.sleep(60)
for _ in range(4):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        ctypes.CDLL(None).syscall(60, 0)
time.sleep(60)
""",
    "by processes that pass it on thousands of times a second": """
import ctypes, mmap, os, signal, time
# again: clone(CLONE_PARENT | CLONE_VM | SIGCHLD, stack, 0, 0); if its result is 0 or an error, go to again; exit(0)
code = bytes.fromhex("b838000000 bf11810000 4c89c6 31d2 4d31d2 0f05 85c0 7ee8 b83c000000 31ff 0f05")
area = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area.write(code)
place = ctypes.addressof(ctypes.c_char.from_buffer(area))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        block = b"x" * (100 << 20)
        ctypes.CFUNCTYPE(None, *[ctypes.c_long] * 5)(place)(0, 0, 0, 0, place + 8000)
time.sleep(60)
""",
}
ENDS: dict[str, tuple[str, str, dict[str, Any]]] = {  # program, status, limits
    "children that share the work of filling memory": (
        "import os, time\n"
        "for child in range(12):\n"
        "  if os.fork() == 0:\n"
        "    block = bytearray(400 << 20)\n"
        "    for page in range(0, len(block), 4096): block[page] = 1\n"
        "    time.sleep(60)\n"
        "time.sleep(60)",
        "memory_limit",
        {"seconds": 30.0},
    ),
    "empty files": (
        "import os\nfor name in range(10**7): os.mknod(f'/tmp/{name}')",
        "memory_limit",
        {"seconds": 60.0, "memory_mb": 64},
    ),
    "output at its limit": ("print('a' * 65535)", "ok", {}),
    "output one byte too long": ("print('a' * 65536)", "output_limit", {}),
    "a crash of the interpreter": ("import ctypes; ctypes.string_at(0)", "killed", {}),
    "a program that kills all it can": ("import os; os.kill(0, 9)", "killed", {}),
    **{
        f"no program: {program[:5]!r}": (program, "error", {})
        for program in ("(" * 1_000_000, "x = " + "-" * 1_000_000 + "1", "\0", "\udc80 = 1", "a" * 1_000_000)
    },
}
if X86_64:
    ENDS |= {how: (program, "memory_limit", {"seconds": 30.0, "memory_mb": 256}) for how, program in HIDDEN.items()}
    ENDS["a call by another ABI"] = (CALL + "print(call(0x40000000 | 39))", "killed", {})


@pytest.mark.parametrize("what", ENDS)
def test_what_a_program_takes_is_limited_and_it_ends_alone(box: Driver, what: str) -> None:
    program, status, limits = ENDS[what]
    assert box.run(program, **limits).status == status
    assert box.run("print(4)").stdout == "4\n"


def test_a_gigabyte_of_output_is_cut(box: Driver) -> None:
    result = box.run("import sys\nfor i in range(1024): sys.stdout.write('a' * (1 << 20))")
    assert (result.status, result.stdout) == ("output_limit", "a" * 65536)


def test_a_fork_bomb_ends_with_its_own_sandbox(box: Driver) -> None:
    program = (
        "import os, time\nforks = 0\n"
        "while forks < 200:\n"
        "  try:\n    if os.fork() == 0: time.sleep(60)\n    forks += 1\n"
        "  except OSError: break\n"
        "print(forks)"
    )
    result = box.run(program)
    assert result.status == "ok"
    assert 0 < int(result.stdout) < 16
    assert box.run("print(2)").stdout == "2\n"


@pytest.mark.skipif("root" not in USERS, reason="only root has rights to give up")
def test_memory_is_limited_where_root_may_not_read_other_processes() -> None:
    program = "import os, time\nfor _ in range(3):\n  if os.fork() == 0: block = b'x' * (28 << 20); time.sleep(60)\ntime.sleep(60)"
    with driver(WITHOUT_PTRACE) as box:
        assert box.run(program, memory_mb=64).status == "memory_limit"


def test_an_endless_loop_ends_at_the_deadline(box: Driver) -> None:
    result = box.run("print(1)\nwhile True: pass", seconds=0.5)
    assert (result.status, result.stdout) == ("timed_out", "1\n")
    assert result.seconds >= 0.5


def test_a_daemon_does_not_outlive_the_call(box: Driver) -> None:
    program = (
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)\n"
        "  if os.fork() == 0: time.sleep(600)\n"
        "  os._exit(0)\n"
        "print('left')"
    )
    result = box.run(program)
    assert (result.status, result.stdout) == ("ok", "left\n")
    assert result.seconds < 10.0  # it holds the pipe of the output open, which is not waited for
    assert box.run("import os; print(len([name for name in os.listdir('/proc') if name.isdigit()]))").stdout == "2\n"


STAYS = {  # a program, and what the next one prints
    "files": (
        "open('/tmp/left', 'w').write('x'); open('/dev/shm/left', 'w').write('x')",
        "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'))",
        "[] []\n",
    ),
    "the time of a change": (
        "import os; open('/tmp/x', 'w'); os.remove('/tmp/x'); os.utime('/tmp', ns=(7, 7)); os.chmod('/tmp', 0o500)",
        "import os; state = os.stat('/tmp'); print(state.st_mtime_ns == 7, oct(state.st_mode))",
        "False 0o40755\n",
    ),
    "variables and changed modules": (
        "import builtins, math; builtins.left = 1; math.pi = 3; left = 2",
        "import math; print(math.pi > 3, 'left' in dir(__builtins__), 'left' in globals())",
        "True False False\n",
    ),
    "signals to the server": (
        "import os, signal\n"
        "for number in range(1, 65):\n"
        "  for process in (1, os.getppid()):\n"
        "    try: os.kill(process, number)\n"
        "    except OSError: pass\n",
        "print(3)",
        "3\n",
    ),
    "what looks like answers, in everything that can be opened": (
        "import os, struct\n"
        "forged = struct.pack('<cd?I', b'K', 0.0, True, 6) + b'forged'\n"
        "for place in range(3, 64):\n"
        "  for path in (f'/proc/1/fd/{place}', f'/proc/self/fd/{place}'):\n"
        "    try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), forged)\n"
        "    except OSError: pass\n",
        "print(1)",
        "1\n",
    ),
}


@pytest.mark.parametrize("what", STAYS)
def test_nothing_stays_for_the_next_program(box: Driver, what: str) -> None:
    program, following, printed = STAYS[what]
    box.run(program)
    assert [box.run(following).stdout for _ in range(2)] == [printed] * 2


# --- the caller ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", EVERY_USER)
def test_a_killed_caller_leaves_no_process(user: str) -> None:
    with driver(user) as started:
        assert started.run("print(5)").stdout == "5\n"
        assert started.process.stdin is not None
        started.process.stdin.write(
            '{"program": "import time; time.sleep(600)", "cold": true, "limits": {"seconds": 600.0}}\n'
        )
        started.process.stdin.flush()
        caller = psutil.Process(started.process.pid)
        while (
            len(left := caller.children(recursive=True)) < 5
        ):  # two sandboxes: bubblewrap and a server each, one program
            time.sleep(0.05)
        caller.kill()
        assert psutil.wait_procs(left, timeout=30)[1] == []


WAITING = """
import asyncio, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been started in the background, where it is ignored
from dagrpo_sandbox import Limits, SandboxPool
async def main():
    async with SandboxPool(Limits(seconds=600.0), size=2) as pool:
        print("started", flush=True)
        await asyncio.gather(*(pool.run("import time; time.sleep(600)") for _ in range(4)))
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
def test_a_caller_that_is_told_to_stop_leaves_no_process(box: Driver, number: int) -> None:
    with program_of(box.user, WAITING) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        caller = psutil.Process(process.pid)
        while len(left := caller.children(recursive=True)) < 6:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) != 0
        assert psutil.wait_procs(left, timeout=30)[1] == []
