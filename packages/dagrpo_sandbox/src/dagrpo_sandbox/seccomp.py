"""Filter of system calls, as a BPF program for `bwrap --seccomp`.

An allow-list (`system_calls`), written without a library: what is not in it fails with EPERM, and with ENOSYS what is newer than it,
so that libraries fall back.
"""

import errno
import platform
import struct

from dagrpo_sandbox.system_calls import ALLOWED, CONDITIONS, NEWEST, Condition

LOAD, AND, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_OR_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
ALLOW, KILL_PROCESS, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data, little endian
X32 = 0x40000000  # set in the numbers of x86_64's other ABI
OTHER_ERRORS = {  # by numbers on x86_64 and aarch64
    (435, 435): errno.ENOSYS,  # clone3: glibc then uses clone, whose flags can be looked at
    **dict.fromkeys(((188, 5), (189, 6), (190, 7)), errno.EOPNOTSUPP),  # setxattr: cp then does without
    **dict.fromkeys(((197, 14), (198, 15), (199, 16)), errno.EOPNOTSUPP),  # removexattr
}
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = ("x86_64", "aarch64")


def bpf(machine: str = "") -> bytes:
    """Return the filter for a machine ("": this one). Raises KeyError for a machine that is neither x86_64 nor aarch64."""
    name = machine or platform.machine()
    if name not in MACHINES:
        raise KeyError(name)
    column = MACHINES.index(name)
    program = _other_abis_are_killed(name)
    program += b"".join(_judge_argument(each, each.numbers[column]) for each in CONDITIONS)
    program += b"".join(_answer(number, ALLOW) for number in sorted(allowed(column)))
    program += b"".join(_answer(numbers[column], REFUSE | error) for numbers, error in OTHER_ERRORS.items())
    program += _instruction(JUMP_GREATER, NEWEST, 0, 1) + _instruction(RETURN, REFUSE | errno.ENOSYS)
    return program + _instruction(RETURN, REFUSE | errno.EPERM)


def allowed(column: int) -> set[int]:
    """Return the numbers that are allowed with all arguments on MACHINES[column]."""
    return {number for group in ALLOWED for each in group.numbers.values() if (number := each[column]) is not None}


def table() -> str:
    """Return the allow-list as a table of Markdown."""
    rows = [f"| {' '.join(group.numbers)} | {group.why} |" for group in ALLOWED]
    rows += [f"| {each.name}, by its argument {each.argument + 1} | {each.why} |" for each in CONDITIONS]
    return "\n".join(["| system calls | why they are allowed |", "|---|---|", *rows])


def _other_abis_are_killed(name: str) -> bytes:
    """Return instructions that kill callers of other ABIs, where the same numbers mean other calls."""
    kill = _instruction(RETURN, KILL_PROCESS)
    program = _instruction(LOAD, ARCHITECTURE) + _instruction(JUMP_EQUAL, AUDIT_ARCHITECTURES[name], 1, 0) + kill
    return program + _instruction(LOAD, NUMBER) + _instruction(JUMP_GREATER_OR_EQUAL, X32, 0, 1) + kill


def _answer(number: int, verdict: int) -> bytes:
    return _instruction(JUMP_EQUAL, number, 0, 1) + _instruction(RETURN, verdict)


def _judge_argument(condition: Condition, number: int) -> bytes:
    """Return instructions that judge the lower half of one argument, and skip themselves for other calls."""
    load = _instruction(LOAD, FIRST_ARGUMENT + 8 * condition.argument)
    body, otherwise = load + b"".join(_answer(value, REFUSE) for value in condition.pretended), ALLOW
    if condition.only:
        body += b"".join(_answer(value, ALLOW) for value in condition.only)
        otherwise = REFUSE | errno.EPERM
    for mask in condition.without:
        body += load + _instruction(AND, mask) + _answer(mask, REFUSE | errno.EPERM)
    body += _instruction(RETURN, otherwise)
    return _instruction(JUMP_EQUAL, number, 0, len(body) // 8) + body


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a struct sock_filter: 8 bytes."""
    return struct.pack("<HBBI", code, if_true, if_false, value)
