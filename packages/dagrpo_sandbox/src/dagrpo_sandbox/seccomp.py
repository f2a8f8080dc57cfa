"""Filter of system calls, as a BPF program for `bwrap --seccomp`.

An allow-list, each call with why, written without a library: what is not in it fails with EPERM, and with ENOSYS what is newer than it,
so that libraries fall back. Numbers are those of x86_64 and aarch64; `-`: there is no such call.
"""

import errno
import platform
import struct
from dataclasses import dataclass

NEWEST = 462  # the last number that was judged; later ones do not exist inside
NEW_NAMESPACES = tuple(1 << bit for bit in (17, 25, 26, 27, 28, 29, 30))  # the CLONE_NEW* flags of clone
MAP_SHARED_ANONYMOUS, MAP_HUGETLB = 0x21, 0x40000


@dataclass(frozen=True, slots=True)
class Group:
    """Group of calls that are allowed for one reason."""

    why: str
    calls: str  # "name x86_64 aarch64, ..."

    @property
    def numbers(self) -> dict[str, tuple[int | None, ...]]:
        """Return the numbers of each call on x86_64 and on aarch64."""
        rows = (row.split() for row in self.calls.split(", "))
        return {name: tuple(None if each == "-" else int(each) for each in numbers) for name, *numbers in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Call that depends on one argument: `only` these values, or `without` all bits of any of these masks."""

    name: str
    numbers: tuple[int, int]
    argument: int
    why: str
    only: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    pretended: tuple[int, ...] = ()  # values with which it does nothing and returns 0


CONDITIONS = (
    Condition(
        name="mmap",
        numbers=(9, 222),
        argument=3,
        without=(MAP_HUGETLB, MAP_SHARED_ANONYMOUS),
        why="memory; not shared without a file, whose pages stay when they are unmapped, nor huge pages, which belong to the machine",
    ),
    Condition(
        name="madvise",
        numbers=(28, 233),
        argument=2,
        only=(0, 1, 2, 3, 4, 8, 14, 15, 16, 17),
        why="advice on memory; not what moves it to swap or merges it with that of others",
    ),
    Condition(
        name="fcntl",
        numbers=(72, 25),
        argument=1,
        only=(0, 1, 2, 3, 4, 5, 1030, 1032),
        pretended=(6, 7),
        why="descriptors and flags; no signals (F_SETOWN, F_SETSIG), leases, larger pipes. Locks of ranges (F_SETLK), of which the kernel "
        "would keep any number, seem to succeed, as SQLite needs",
    ),
    Condition(
        name="ioctl",
        numbers=(16, 29),
        argument=1,
        only=(0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451),
        why="TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; no signals (FIOASYNC, FIOSETOWN)",
    ),
    Condition(
        name="clone",
        numbers=(56, 220),
        argument=0,
        without=NEW_NAMESPACES,
        why="processes and threads, limited by RLIMIT_NPROC; no namespaces",
    ),
    Condition(
        name="prlimit64",
        numbers=(302, 261),
        argument=0,
        only=(0,),
        why="its own limits, which are hard; not those of others",
    ),
    Condition(
        name="prctl",
        numbers=(157, 167),
        argument=0,
        only=(1, 2, 3, 4, 15, 16, 23, 38, 39),
        why="PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_NO_NEW_PRIVS and what reads; no filters, no names of mappings",
    ),
    Condition(
        name="socketpair",
        numbers=(53, 199),
        argument=0,
        only=(1,),
        why="AF_UNIX, of which asyncio and multiprocessing need pairs",
    ),
)
ALLOWED = (
    Group(
        "files of the sandbox's mounts, which are read-only but for two tmpfs of limited size",
        "read 0 63, write 1 64, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69, pwritev 296 "
        "70, preadv2 327 286, pwritev2 328 287, open 2 -, openat 257 56, openat2 437 437, creat 85 -, close 3 57, "
        "close_range 436 436, lseek 8 62, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, statfs "
        "137 43, fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, "
        "getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, umask 95 166, fadvise64 221 223, "
        "readahead 187 213, fsync 74 82, fdatasync 75 83, sync_file_range 277 84, "
        "sendfile 40 71, copy_file_range 326 285, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 "
        "11, llistxattr 195 12, flistxattr 196 13",
    ),
    Group(
        "changes in the two tmpfs: blocks and inodes are counted, and each sets a ctime",
        "mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, "
        "renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, mknod 133 -, mknodat 259 33, "
        "truncate 76 45, ftruncate 77 46, fallocate 285 47, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 "
        "452, chown 92 -, lchown 94 -, fchown 93 55, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, "
        "utimensat 280 88",
    ),
    Group(
        "descriptors, of which a process has at most `descriptors`; a pipe holds 64 KiB, a socket of a pair 208 KiB",
        "dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, eventfd 284 -, eventfd2 290 19, epoll_create 213 "
        "-, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, poll "
        "7 -, ppoll 271 73, select 23 -, pselect6 270 72, timerfd_create 283 85, timerfd_settime 286 86, "
        "timerfd_gettime 287 87, pidfd_open 434 434, splice 275 76, flock 73 32",
    ),
    Group(
        "unnamed pairs of sockets, without names or options; descriptors under way are limited by RLIMIT_NOFILE",
        "sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210, getsockopt 55 209, "
        "getsockname 51 204, getpeername 52 205",
    ),
    Group(
        "memory, limited by RLIMIT_AS in a process and counted over all; at most 65,530 mappings of a process",
        "brk 12 214, munmap 11 215, mprotect 10 226, mremap 25 216, msync 26 227, mincore 27 232, mlock 149 228, "
        "munlock 150 229",
    ),
    Group(
        "processes and threads, limited by RLIMIT_NPROC",
        "fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, wait4 61 260, waitid "
        "247 95, set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, futex 202 98, "
        "arch_prctl 158 -",
    ),
    Group(
        "signals within its own pid namespace; those that queue are limited by RLIMIT_SIGPENDING",
        "kill 62 129, tkill 200 130, tgkill 234 131, pidfd_send_signal 424 424, rt_sigaction 13 134, rt_sigprocmask "
        "14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, "
        "sigaltstack 131 132, restart_syscall 219 128, pause 34 -, alarm 37 -, getitimer 36 102, setitimer 38 103",
    ),
    Group(
        "its own identity, limits and place among processes: reads, or changes that end with the process",
        "getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 "
        "177, getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgrp 111 -, getpgid 121 155, setpgid 109 "
        "154, getsid 124 156, setsid 112 157, getrlimit 97 163, setrlimit 160 164, getrusage 98 165, getpriority 140 "
        "141, times 100 153, capget 125 90, ioprio_get 252 31",
    ),
    Group(
        "clocks, randomness and facts about the machine",
        "clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169, "
        "time 201 -, getrandom 318 278, uname 63 160, sysinfo 99 179, getcpu 309 168, sched_yield 24 124, "
        "sched_getaffinity 204 123, sched_getscheduler 145 120, sched_getparam 143 121, sched_get_priority_max 146 "
        "125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127, membarrier 324 283",
    ),
)


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
