"""Error messages for exceptions that the user can fix.

All other exceptions are bugs. Secrets are redacted, since libraries quote addresses with their passwords, and characters without a
glyph are escaped, since files, servers and models are quoted.

Writers report a full disk in many ways: Arrow names no file, safetensors raises its own error, torch only reports an unexpected
position. Here all become an OSError that names the file that was to be written.
"""

import errno
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dagrpo.core.errors import TransientError, UserError
from dagrpo.core.escape import visible
from dagrpo.core.redaction import redacted

MISTAKE = 65  # exit code after the user's mistake (EX_DATAERR): the stage is not started again
TRANSIENT = 75  # exit code after something outside broke (EX_TEMPFAIL): the stage is started again
NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# Another object in the file's place, or an unreadable file.
NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENODEV, errno.ENXIO, errno.EIO})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # a full disk, a quota, a limit for files
NEARLY_FULL = 1 << 20  # bytes free, below which an error without a reason counts as a full disk
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # as Rust's libraries write it
_OF_TORCH = "inline_container.cc"  # its writer, whatever went wrong with it


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a stage that ends with an error message."""
    return TRANSIENT if isinstance(error, TransientError) else MISTAKE


def sentence_of(error: BaseException) -> str | None:
    """Return the error message for the user; None for a bug, which is shown with its traceback.

    Of the system's errors only those about a file are the user's: a full disk, a missing permission, another object in the file's
    place. A refused connection, for example, is not: it names nothing to act on.
    """
    sentence = _sentence_of(error)
    return None if sentence is None else visible(redacted(sentence))


def words_of(error: BaseException) -> str:
    """Return an error as it is recorded: its message if the user can fix it, else the exception's name and text."""
    return sentence_of(error) or visible(redacted(f"{type(error).__name__}: {error}")).strip().removesuffix(":")


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost call in code of this project or of a plug-in, rather than of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((sys.prefix, sys.base_prefix))] or frames
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else "an unknown place"


def _sentence_of(error: BaseException) -> str | None:
    if isinstance(error, UserError | TransientError):
        return str(error)
    if isinstance(error, OSError):
        return _about_a_file(error)
    if _is_out_of_device_memory(error):
        return (
            "The device's memory is full: lower runtime.training.micro_batch_size (train), "
            "runtime.sft.micro_batch_size (sft) or runtime.engine.max_total_tokens (the engine beside them), and run again: "
            "it goes on from its last state."
        )
    return None


def _about_a_file(error: OSError) -> str | None:
    if no_room(error):
        return about_room(error)
    if error.errno in NO_PERMISSION and error.filename is not None:
        return f"{error.filename}: {error.strerror}: correct its permissions, then run again."
    if error.errno in NO_FILE and error.filename is not None:
        return f"{error.filename}: {error.strerror}: move it away, or put a readable file there, then run again."
    return None


def _is_out_of_device_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # a process that has not imported torch cannot have raised its error
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


class NotEnoughRoom(OSError):
    """An error raised before anything was written: its text has the bytes needed."""


@contextmanager
def full_disk_naming(path: Path) -> Iterator[None]:
    """Turn a writer's error about a full disk into an OSError that names `path`; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        number = _number_of(error, path)
        if number is None:
            raise
        if isinstance(error, NotEnoughRoom):
            raise NotEnoughRoom(number, error.strerror, str(path)) from error
        raise OSError(number, os.strerror(number), str(path)) from error


def no_room(error: BaseException) -> bool:
    """Return True if a full disk, a quota or a limit for files stopped a write."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


def about_room(error: OSError) -> str:
    """Return the message about such an error. If the error names no file, the disk is unknown."""
    if error.filename is None:
        return f"a disk: {error.strerror}: make room, then run again."
    if error.errno == errno.EFBIG:
        return f"{error.filename}: {error.strerror}: raise the limit for the size of files (ulimit -f), then run again."
    disk = disk_of(Path(str(error.filename)))
    if error.errno == errno.EDQUOT:
        return f"{error.filename}: {error.strerror}: make room for your files on {disk}, or have the quota raised, then run again."
    if isinstance(error, NotEnoughRoom):
        return f"{error.filename}: {error.strerror}: make room on {disk}, then run again."
    return (
        f"{error.filename}: {error.strerror}: it takes more than the {free_on(disk):,} bytes that are free on {disk}: "
        "make room, then run again."
    )


def disk_of(path: Path) -> Path:
    """Return the mount point of the disk that holds a path, or would hold it."""
    place = path.absolute()
    while not os.path.ismount(place):
        place = place.parent
    return place


def free_on(path: Path) -> int:
    """Return the bytes that an ordinary user may still write there."""
    return shutil.disk_usage(path).free


def _number_of(error: Exception, path: Path) -> int | None:
    """Return ENOSPC, EDQUOT or EFBIG if an error comes from one of them, else None."""
    if isinstance(error, OSError):
        return error.errno if error.errno in NO_ROOM else None
    match = _OS_ERROR.search(str(error))
    if match is not None and int(match[1]) in NO_ROOM:
        return int(match[1])
    gives_no_reason = _OF_TORCH in str(error)
    return errno.ENOSPC if gives_no_reason and free_on(disk_of(path)) < NEARLY_FULL else None
