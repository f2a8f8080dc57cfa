"""Which exceptions the user can mend, and the sentence that says how. All others are bugs.

No sentence has a secret, as libraries quote addresses with their passwords, nor a character without a glyph: files,
servers and models are quoted, too.
"""

import errno
import sys

from dagrpo.errors import TransientError, UserError
from dagrpo.full_disk import NO_ROOM, about_room
from dagrpo.redaction import redacted
from dagrpo.visible import visible

MISTAKE = 65  # exit code after the user's mistake (EX_DATAERR): the stage is not started again
TRANSIENT = 75  # exit code after something outside broke (EX_TEMPFAIL): the stage is started again
NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# Something else in its place, or a file beyond reading.
NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENODEV, errno.ENXIO, errno.EIO})


def exit_code_of(error: BaseException) -> int:
    """How a stage ends that has told an error in a sentence."""
    return TRANSIENT if isinstance(error, TransientError) else MISTAKE


def sentence_of(error: BaseException) -> str | None:
    """What to tell the user; None for a bug, which is shown with its traceback.

    Of the system's errors only those are the user's that are about a file: a full disk, a missing permission, something
    else in the file's place. A refused connection, say, says nothing that they could act on.
    """
    sentence = _sentence_of(error)
    return None if sentence is None else visible(redacted(sentence))


def words_of(error: BaseException) -> str:
    """What is recorded of any error: the sentence of one that the user can mend, else the exception's name and text."""
    return sentence_of(error) or visible(redacted(f"{type(error).__name__}: {error}")).strip().removesuffix(":")


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
    torch = sys.modules.get("torch")  # whoever has not imported it cannot have raised its error
    return torch is not None and isinstance(error, torch.OutOfMemoryError)
