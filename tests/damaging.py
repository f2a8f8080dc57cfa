"""Everything that a file can be instead of what was written, and a file as that while a test looks at who reads it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MANY_ZEROS = 200_000_000
DEEP = 100_000  # levels


def _holding(content: bytes) -> Callable[[Path, bytes], None]:
    def write(path: Path, whole: bytes) -> None:
        path.write_bytes(content)

    return write


def _half(path: Path, whole: bytes) -> None:
    path.write_bytes(whole[: len(whole) // 2])


def _not_utf8(path: Path, whole: bytes) -> None:
    path.write_bytes(b"\xff\xfe" + whole)


def _with_nul(path: Path, whole: bytes) -> None:
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + b"\0\0\0" + whole[middle:])


def _folder(path: Path, whole: bytes) -> None:
    path.mkdir()


def _broken_link(path: Path, whole: bytes) -> None:
    path.symlink_to("nowhere")


def _failing_disk(path: Path, whole: bytes) -> None:
    """A regular file whose every read fails, also for root."""
    path.symlink_to("/proc/self/mem")


def _forbidden(path: Path, whole: bytes) -> None:
    path.write_bytes(whole)
    path.chmod(0)


def _zeros(path: Path, whole: bytes) -> None:
    path.touch()
    os.truncate(path, MANY_ZEROS)  # takes no room


WAYS: dict[str, Callable[[Path, bytes], None]] = {
    "empty": _holding(b""),
    "truncated": _half,
    "not UTF-8": _not_utf8,
    "NUL inside": _with_nul,
    "null": _holding(b"null"),
    "a number": _holding(b"7\n"),
    "a list": _holding(b'[1, "a"]'),
    "an empty object": _holding(b"{}\n"),
    "an object of nulls": _holding(
        b'{"files": null, "stage": null, "outputs": null, "inputs": null, "raw": null, "key": null}\n'
    ),
    "deep lists": _holding(b"[" * DEEP + b"]" * DEEP),
    "deep objects": _holding(b'{"a": ' * DEEP + b"1" + b"}" * DEEP),
    "a long number": _holding(b'{"a": ' + b"9" * 5000 + b"}"),
    "zeros": _zeros,
    "a folder": _folder,
    "a broken link": _broken_link,
    "a disk that fails": _failing_disk,
    "forbidden": _forbidden,
}
LIKELY_WAYS = (
    "empty",
    "truncated",
    "a folder",
    "forbidden",
)  # as a kill, a full disk or a user leaves a file of our own


@contextmanager
def damaged(path: Path, way: str) -> Iterator[None]:
    """Have a file be damaged; afterwards it is what it was."""
    whole = path.read_bytes()
    path.unlink()
    WAYS[way](path, whole)
    try:
        yield
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
