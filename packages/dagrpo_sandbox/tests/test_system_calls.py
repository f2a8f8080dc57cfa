"""The filter of system calls, read instruction by instruction; its table in the documents; and calls that it must refuse."""

import errno
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages.dagrpo_sandbox.tests.running import Driver, driver

from dagrpo_sandbox import seccomp
from dagrpo_sandbox.seccomp import ALLOWED, CONDITIONS, NEWEST, Condition

PAGE = Path(__file__).parents[3] / "docs/sandbox.md"


def _judge(program: bytes, architecture: int, number: int, argument: int) -> int:
    """What the kernel's interpreter returns: classic BPF over struct seccomp_data, all of whose arguments are the same."""
    data = {seccomp.NUMBER: number, seccomp.ARCHITECTURE: architecture}
    data |= {seccomp.FIRST_ARGUMENT + 8 * place: argument & 0xFFFFFFFF for place in range(6)}
    instructions = [struct.unpack_from("<HBBI", program, start) for start in range(0, len(program), 8)]
    register, place = 0, 0
    while True:
        code, if_true, if_false, value = instructions[place]
        place += 1
        if code == seccomp.RETURN:
            return int(value)
        if code == seccomp.LOAD:
            register = data[value]
        elif code == seccomp.AND:
            register &= value
        else:
            tests = {
                seccomp.JUMP_EQUAL: register == value,
                seccomp.JUMP_GREATER: register > value,
                seccomp.JUMP_GREATER_OR_EQUAL: register >= value,
            }
            place += if_true if tests[code] else if_false


def _holds(condition: Condition, argument: int) -> bool:
    fits = argument in condition.only if condition.only else True
    return fits and not any(argument & mask == mask for mask in condition.without)


INTERESTING = sorted({value for each in CONDITIONS for value in (*each.only, *each.without, *each.pretended)})


@given(st.sampled_from(seccomp.MACHINES), st.integers(0, 600), st.integers(0, 2**64 - 1) | st.sampled_from(INTERESTING))
def test_the_filter_allows_its_list_and_nothing_else(machine: str, number: int, argument: int) -> None:
    column = seccomp.MACHINES.index(machine)
    verdict = _judge(seccomp.bpf(machine), seccomp.AUDIT_ARCHITECTURES[machine], number, argument)
    conditions = [each for each in CONDITIONS if each.numbers[column] == number]
    others = [error for numbers, error in seccomp.OTHER_ERRORS.items() if numbers[column] == number]
    if conditions and argument & 0xFFFFFFFF in conditions[0].pretended:
        expected = seccomp.REFUSE  # with error 0
    elif conditions:
        expected = seccomp.ALLOW if _holds(conditions[0], argument & 0xFFFFFFFF) else seccomp.REFUSE | errno.EPERM
    elif number in seccomp.allowed(column):
        expected = seccomp.ALLOW
    else:
        expected = seccomp.REFUSE | (others[0] if others else errno.ENOSYS if number > NEWEST else errno.EPERM)
    assert verdict == expected


def test_no_call_is_judged_twice() -> None:
    for column in range(len(seccomp.MACHINES)):
        numbers = [each[column] for group in ALLOWED for each in group.numbers.values() if each[column] is not None]
        numbers += [each.numbers[column] for each in CONDITIONS] + [each[column] for each in seccomp.OTHER_ERRORS]
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_another_architecture_and_another_abi_end_the_process(machine: str) -> None:
    program = seccomp.bpf(machine)
    assert _judge(program, 0x40000003, 1, 0) == seccomp.KILL_PROCESS  # i386
    assert _judge(program, seccomp.AUDIT_ARCHITECTURES[machine], seccomp.X32 | 1, 0) == seccomp.KILL_PROCESS


# --- calls -----------------------------------------------------------------------------------------------------------

CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
reading, writing = os.pipe()
text = ctypes.create_string_buffer(64)
open("/tmp/file", "w").close()
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return result >= 0
"""
INTO_OTHERS = {  # on x86_64
    "ptrace": "101, 16, 1",
    "keyctl": "250, 0, -3",
    "bpf": "321, 0",
    "io_uring_setup": "425, 1",
    "perf_event_open": "298, 0",
    "userfaultfd": "323, 0",
    "process_vm_readv": "310, 1",
    "personality": "135, 0x40000",
    "socketpair of another family": "53, 16, 1, 0, text",
}
KERNEL_MEMORY = {
    "setxattr": "188, b'/tmp/file', b'system.posix_acl_access', text, 28, 0",
    "lsetxattr": "189, b'/tmp/file', b'user.x', text, 1, 0",
    "fsetxattr": "190, os.open('/tmp/file', 0), b'user.x', text, 1, 0",
    "setxattrat": "463, -100, b'/tmp/file', 0, b'user.x', text, 16",
    "memfd_create": "319, b'x', 0",
    "shmget": "29, 0, 1 << 20, 0o1600",
    "msgget": "68, 0, 0o1600",
    "mq_open": "240, b'q', 0o102",
    "io_setup": "206, 1, text",
    "timer_create": "222, 0, 0, text",
    "inotify_init1": "294, 0",
    "fanotify_init": "300, 0",
    "landlock_create_ruleset": "444, 0, 0, 1",
    "seccomp": "317, 2, 0, text",
    "vmsplice": "278, writing, text, 1, 0",
    "mmap of shared memory without a file": "9, 0, 4096, 3, 0x21, -1, 0",
    "mmap of huge pages": "9, 0, 1 << 21, 3, 0x40022, -1, 0",
    "madvise to swap": "28, 0, 0, 21",
    "madvise to merge": "28, 0, 0, 12",
    "fcntl F_SETPIPE_SZ": "72, reading, 1031, 1 << 20",
    "fcntl F_SETLEASE": "72, os.open('/tmp/file', 0), 1024, 0",
}
SIGNALS = {
    "fcntl F_SETOWN": "72, reading, 8, os.getpid()",
    "fcntl F_SETSIG": "72, reading, 10, 18",
    "fcntl F_SETOWN_EX": "72, reading, 15, text",
    "fcntl F_NOTIFY": "72, os.open('/tmp', 0), 1026, 2",
    "ioctl FIOASYNC": "16, reading, 0x5452, text",
    "ioctl FIOSETOWN": "16, reading, 0x8901, text",
}


@pytest.fixture(scope="module")
def box() -> Iterator[Driver]:
    with driver("root" if platform.machine() == "x86_64" else pytest.skip("numbers are those of x86_64")) as started:
        yield started


@pytest.mark.parametrize("calls", [INTO_OTHERS, KERNEL_MEMORY, SIGNALS], ids=["others", "memory", "signals"])
def test_calls_that_take_what_nothing_counts_are_refused(box: Driver, calls: dict[str, str]) -> None:
    lines = "\n".join(f"if call({arguments}): print({name!r})" for name, arguments in calls.items())
    assert box.run(CALL + lines).stdout == ""


def test_programs_that_use_what_there_is_need_no_other_calls(box: Driver) -> None:
    program = """
import asyncio, multiprocessing, shutil, sqlite3, subprocess
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
open("/tmp/file", "w").write("x")
shutil.copy2("/tmp/file", "/tmp/copy")
connection = sqlite3.connect("/tmp/table.db")
connection.execute("create table t(x)")
connection.commit()
for kind in (ProcessPoolExecutor, ThreadPoolExecutor):
    with kind(2) as executor:
        list(executor.map(abs, [-1]))
multiprocessing.Value("i", 3)
tools = "cp -a /tmp/file /tmp/other; sed -i s/x/y/ /tmp/other; ls -la /tmp | sort | grep other | wc -l; cat /tmp/other"
print(subprocess.run(tools, shell=True, capture_output=True, text=True))
asyncio.run(asyncio.sleep(0))
"""
    result = box.run(program)
    assert (result.status, result.stdout.split("returncode=")[1:]) == ("ok", ["0, stdout='1\\ny', stderr='')\n"])


def test_the_documents_have_the_table_of_the_filter() -> None:
    assert seccomp.table() in PAGE.read_text(), "put seccomp.table() into docs/sandbox.md"
