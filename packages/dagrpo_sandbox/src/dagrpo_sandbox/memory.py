"""Memory of all processes of one sandbox, measured from outside.

Without cgroups the kernel has no limit for their sum.
"""

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
INODE_BYTES = 1024  # of the kernel's memory, for a file in a tmpfs that the file system does not count
WRITABLE = ("tmp", "dev/shm")


def held_bytes(first: int, at_most: int) -> int:
    """Return the bytes of the processes in the namespace of its first one, and of the files in its tmpfs; 0 once it has ended.

    Resident sizes, which count shared pages several times; where they exceed `at_most`, proportional ones, which cost more.
    """
    root = Path("/proc", str(first), "root")
    try:
        processes = [root / "proc" / name for name in os.listdir(root / "proc") if name.isdigit()]
        files = sum(_file_bytes(root / folder) for folder in WRITABLE)
    except OSError:
        return 0
    resident = sum(map(_resident_bytes, processes)) + files
    return resident if resident <= at_most else sum(map(_proportional_bytes, processes)) + files


def _file_bytes(folder: Path) -> int:
    """Return the bytes of blocks and inodes: a million empty files take no block, but a gigabyte of the kernel's memory."""
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize + (state.f_files - state.f_ffree) * INODE_BYTES


def _resident_bytes(process: Path) -> int:
    try:
        return int((process / "statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):  # it has ended
        return 0


def _proportional_bytes(process: Path) -> int:
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except PermissionError:
        return _resident_bytes(process)
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
