"""Filter of system calls, as a BPF program for `bwrap --seccomp`.

It needs no library. A deny list: programs may use whatever Python's standard library uses for files, processes and threads. It refuses
calls that reach outside (sockets, namespaces, modules, keys), that reach into another process (ptrace, other people's limits),
that keep memory which no limit counts (memfd, System V, message queues), and those that have had many holes (bpf, io_uring, perf).
"""

import errno
import platform
import struct

LOAD, JUMP_EQUAL, JUMP_GREATER_OR_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data, little endian
X32 = 0x40000000  # set in the numbers of x86_64's other ABI
NEW_NAMESPACES = 0x7E020000  # the CLONE_NEW* flags of clone
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = ("x86_64", "aarch64")

# name: (number on x86_64, number on aarch64); None: there is no such call
REFUSED: dict[str, tuple[int, int | None]] = {
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "personality": (135, 92),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
NOT_THERE: dict[str, tuple[int, int]] = {
    "clone3": (435, 435)
}  # ENOSYS: glibc then uses clone, whose flags can be looked at
CLONE = (56, 220)
PRLIMIT = (302, 261)


def bpf(machine: str = "") -> bytes:
    """Return the filter for a machine ("": this one). Raises KeyError for a machine that is neither x86_64 nor aarch64."""
    name = machine or platform.machine()
    if name not in MACHINES:
        raise KeyError(name)
    column = MACHINES.index(name)
    program = _other_abis_are_killed(name)
    program += b"".join(_refuse(numbers[column], errno.EPERM) for numbers in REFUSED.values())
    program += b"".join(_refuse(numbers[column], errno.ENOSYS) for numbers in NOT_THERE.values())
    program += _refuse_namespaces(CLONE[column]) + _refuse_other_processes(PRLIMIT[column])
    return program + _instruction(RETURN, ALLOW)


def _other_abis_are_killed(name: str) -> bytes:
    """Return instructions that kill callers of other ABIs, where the same numbers mean other calls."""
    kill = _instruction(RETURN, KILL_PROCESS)
    program = _instruction(LOAD, ARCHITECTURE) + _instruction(JUMP_EQUAL, AUDIT_ARCHITECTURES[name], 1, 0) + kill
    return program + _instruction(LOAD, NUMBER) + _instruction(JUMP_GREATER_OR_EQUAL, X32, 0, 1) + kill


def _refuse(number: int | None, error: int) -> bytes:
    if number is None:
        return b""
    return _instruction(JUMP_EQUAL, number, 0, 1) + _instruction(RETURN, REFUSE | error)


def _refuse_namespaces(clone: int) -> bytes:
    """Refuse a clone that would open a namespace."""
    return _judge_first_argument(clone, _instruction(JUMP_SET, NEW_NAMESPACES, 0, 1))


def _refuse_other_processes(prlimit: int) -> bytes:
    """Refuse a call whose first argument is another process: 0 is the caller itself."""
    return _judge_first_argument(prlimit, _instruction(JUMP_EQUAL, 0, 1, 0))


def _judge_first_argument(number: int, jump: bytes) -> bytes:
    """Return instructions that judge a call's first argument: the jump goes to the next instruction to refuse it, over it otherwise."""
    return (
        _instruction(JUMP_EQUAL, number, 0, 4)
        + _instruction(LOAD, FIRST_ARGUMENT)
        + jump
        + _instruction(RETURN, REFUSE | errno.EPERM)
        + _instruction(RETURN, ALLOW)
    )


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a struct sock_filter: 8 bytes."""
    return struct.pack("<HBBI", code, if_true, if_false, value)
