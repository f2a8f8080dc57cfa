"""Whether an output is still what its provenance says; of a folder, also whether its files are what its manifest says."""

from collections.abc import Iterator
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.execution.former import MANIFEST
from dagrpo.file_names import is_below
from dagrpo.files import read_json, sha256_of
from dagrpo.visible import shown


def is_whole(path: Path, digest: str) -> bool:
    """Whether an output is what its provenance says."""
    return broken_file(path, digest) is None


def broken_file(path: Path, digest: str, largest: int | None = None) -> Path | None:
    """The first file of an output that is missing or has other bytes; None where there is none.

    `largest`: files of a folder with more bytes are not read. Whoever opens a checkpoint reads its weights against the
    manifest; the tokenizer alone may be all that somebody opens.
    """
    if not _has(path, digest):
        return path
    listed = ((path.parent / name, each) for name, each in listed_files(path)) if path.name == MANIFEST else ()
    return next((file for file, each in listed if not (_is_larger(file, largest) or _has(file, each))), None)


def listed_files(manifest: Path) -> Iterator[tuple[str, str]]:
    """The files of a folder with their sha256, as its manifest.json lists them. UserError: a name leads out of it."""
    for name, entry in read_json(manifest)["files"].items():
        if not is_below(name):
            raise UserError(f"{manifest} lists {shown(name)}, which is not a file inside its folder.")
        yield name, entry["sha256"]


def _is_larger(file: Path, largest: int | None) -> bool:
    return largest is not None and file.is_file() and file.stat().st_size > largest


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest
