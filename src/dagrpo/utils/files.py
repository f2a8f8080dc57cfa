"""Files that are either whole or absent, and their digests.

Every writer here writes to a temporary name in the same folder, fsyncs, then renames: a reader never sees half a file,
and a crash leaves the old content in place.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from dagrpo.core.errors import UserError
from dagrpo.utils.failures import NotEnoughRoom, full_disk_naming

_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_FICLONE = 0x40049409  # of linux/fs.h: the blocks of a file are shared until one is written (btrfs, xfs)
FEWEST_LINKED = 1 << 20  # bytes: a smaller file is copied as fast as it is linked
_WRITE_BITS = 0o222


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, as 64 hex digits. Raises OSError naming the file if it cannot be read."""
    with _failures_naming(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """Return one text per value: sorted keys, no spaces. Not meant for people."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON-able value's canonical text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of a file survive a power cut. It need not be writable: a linked file may be protected."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def copy(source: Path, destination: Path) -> None:
    """Copy a file's content to a path, over a file that is there; as a reflink if the file system has them."""
    if not _is_reflinked(source, destination, "wb"):
        shutil.copyfile(source, destination)


def share(source: Path, destination: Path) -> None:
    """Put a file's content at a new path, so that a write to one place leaves the other alone.

    That is a reflink if the file system has them. Without them a file below a megabyte is copied, and a larger one is a hard link
    whose names are both read-only from then on: they can be replaced and removed, and written to by root alone. Where that cannot be, as
    between two disks, the file is copied. Raises FileExistsError for an existing destination.
    """
    if _is_reflinked(source, destination, "xb"):
        return
    if source.stat().st_size < FEWEST_LINKED:
        shutil.copyfile(source, destination)
        return
    destination.unlink()
    try:
        os.link(source.resolve(), destination)
        destination.chmod(destination.stat().st_mode & ~_WRITE_BITS)
    except OSError as error:  # of another user's file the mode cannot be changed
        if error.errno not in _NO_LINKS:
            raise
        destination.unlink(missing_ok=True)
        shutil.copyfile(source, destination)


def _is_reflinked(source: Path, destination: Path, mode: str) -> bool:
    """Return True if the destination, opened in `mode`, got a reflink; if not, it is empty."""
    with source.open("rb") as reading, destination.open(mode) as writing:
        try:
            fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
        except OSError:  # no such file system; of a full disk the copy that follows says so
            return False
    return True


def unshare(path: Path) -> None:
    """Replace a hard link or a read-only file by a separate, writable copy; other names keep theirs. Does nothing if it is missing."""
    if path.is_file() and ((status := path.stat()).st_nlink > 1 or not status.st_mode & stat.S_IWUSR):
        with atomic_file(path) as temporary:
            copy(path, temporary)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; on success it becomes `path`, on any failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _refusals_naming(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        with full_disk_naming(path):
            yield temporary
            temporary.chmod(0o644)
            fsync_file(temporary)
            with _refusals_naming(path):
                temporary.replace(path)
            fsync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; on success it becomes `path` (replacing an older one), on any failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(path)
    with _refusals_naming(path):
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        with full_disk_naming(path):
            yield temporary
            temporary.chmod(0o755)
            for file in sorted(p for p in temporary.rglob("*") if p.is_file()):
                fsync_file(file)
            replace_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _refusals_naming(path: Path) -> Iterator[None]:
    """Raise errors of a temporary name (permissions, a full disk, a folder in its place) again with the name that the user knows."""
    try:
        with full_disk_naming(path):
            yield
    except (PermissionError, IsADirectoryError) as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


def replace_folder(new: Path, path: Path) -> None:
    """Rename a folder, whose files are on the disk, to `path`; an older one is removed, or stays if that fails."""
    for folder in (new, *(p for p in new.rglob("*") if p.is_dir())):
        fsync_folder(folder)
    old = path.parent / f".{path.name}.replaced.old"
    if path.exists():
        path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        _put_back(old, path)
        raise
    fsync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Undo a killed run's incomplete replacement of a folder, and remove its temporary folders.

    Only for the process that writes that folder: no two runs share an output.
    """
    for leftover in sorted(_leftovers(path)):
        if leftover.suffix == ".old":
            _put_back(leftover, path)
        shutil.rmtree(leftover, ignore_errors=True)


def _put_back(old: Path, path: Path) -> None:
    if old.exists() and not path.exists():
        old.rename(path)


def _leftovers(path: Path) -> list[Path]:
    """List temporary folders made for `path`; those made for `path` with a further suffix have one more dot."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[^.]+\.(part|old)")
    return [other for other in path.parent.iterdir() if ours.fullmatch(other.name)]


@contextmanager
def _failures_naming(path: Path) -> Iterator[None]:
    """Raise an OSError that names no file, such as that of a disk which fails while it is read, again with its name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def remove(path: Path) -> None:
    """Remove a file or folder; the target of a link stays. Does nothing if it is missing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def open_private_log(path: Path) -> IO[bytes]:
    """Open a log to append to, which only this user may read; its folder is made, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "ab", opener=partial(os.open, mode=0o600))


def read_text(path: Path, remedy: str) -> str:
    """Read a text file. Raises UserError naming it, and the remedy, if it is missing, unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {remedy}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {remedy}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: {remedy}.") from None


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write readable, deterministic JSON, atomically. NaN is refused: it is not JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return the text that `write_json` writes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_private(path: Path, text: str) -> None:
    """Write a text file that only this user may read, atomically; its folder is there."""
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)  # of mode 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # for another node
    os.replace(new, path)


def read_json(path: Path) -> Any:
    """Read JSON. Raises UserError naming the file if it is missing, unreadable, or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run the stage that makes it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): put a readable file there.") from None
    except RecursionError:
        raise _no_json(path, "it is nested too deeply") from None
    except ValueError as error:  # no JSON, no UTF-8, a number of over 4,300 digits, or a name with a NUL in it
        raise _no_json(path, str(error)) from None


def _no_json(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is not valid JSON ({reason}): delete it and run the stage that makes it again.")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, {"name": value}. Raises UserError as `read_json` does, and for any other value."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise _no_json(path, f"it holds a {type(content).__name__}, not an object")
    return content


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise an error, before anything is written, if the bytes cannot fit on the disk that holds `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise NotEnoughRoom(errno.ENOSPC, f"{needed_bytes:,} bytes are needed, {free:,} are free", str(folder))
