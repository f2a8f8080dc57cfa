"""Error messages for exceptions that the user can fix.

All other exceptions are bugs. Secrets are redacted, since libraries quote addresses with their passwords, and characters without a
glyph are escaped, since files, servers and models are quoted.
"""

import errno
import os
import sys
import traceback

from dagrpo.core.errors import TransientError, UserError
from dagrpo.core.escape import visible
from dagrpo.core.redaction import redacted
from dagrpo.utils.full_disk import NO_ROOM, about_room

MISTAKE = 65  # exit code after the user's mistake (EX_DATAERR): the stage is not started again
TRANSIENT = 75  # exit code after something outside broke (EX_TEMPFAIL): the stage is started again
NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# Another object in the file's place, or an unreadable file.
NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENODEV, errno.ENXIO, errno.EIO})


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
    if error.errno in NO_ROOM:
        return about_room(error)
    if error.errno in NO_PERMISSION and error.filename is not None:
        return f"{error.filename}: {error.strerror}: correct its permissions, then run again."
    if error.errno in NO_FILE and error.filename is not None:
        return f"{error.filename}: {error.strerror}: move it away, or put a readable file there, then run again."
    return None


def _is_out_of_device_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # a process that has not imported torch cannot have raised its error
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
