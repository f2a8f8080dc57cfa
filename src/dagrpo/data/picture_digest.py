"""One digest over the pictures that a raw file names.

A card has it under `<file>#<column>`, beside the digest of the file itself, which does not cover the pictures.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.data.raw_row import RawRow
from dagrpo.data.reading import Reader
from dagrpo.data.source import Source

_MARK = "#"
_UNREADABLE = bytes(32)  # in place of the digest of a picture's content


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureDigest:
    """Digest and size of all pictures of a column."""

    sha256: str
    bytes: int  # of the pictures
    names: tuple[str, ...]  # their paths, from the folder of the file that names them


def name_in_card(file: str, column: str) -> str:
    """Return the name of the pictures of a column among a card's raw files."""
    return f"{file}{_MARK}{column}"


def file_and_column(name: str) -> tuple[str, str] | None:
    """Return the file and the column of a name by `name_in_card`; None for a plain file's name."""
    file, mark, column = name.rpartition(_MARK)
    return (file, column) if mark and file and column else None


def picture_digest(path: Path, column: str) -> PictureDigest:
    """Return the digest over names and bytes of all pictures of a column, in row order, one in memory at a time.

    It covers the whole file, even if a task reads only a part. An unreadable picture counts as one without content, so that the digest
    changes. Raises UserError if the file of rows is damaged.
    """
    rows = Source(
        repository="its data set",
        revision="",
        hub_splits={},
        mirror_files={},
        columns={"pictures": (column,)},
        optional=("pictures",),
    )
    digest, size, names = hashlib.sha256(), 0, dict[str, None]()
    for row in Reader(rows).rows(path, str(path)):
        for name in row.pictures_named("pictures"):
            content = _content(row, name)
            digest.update(hashlib.sha256(name.encode(errors="surrogatepass")).digest())
            digest.update(_UNREADABLE if content is None else hashlib.sha256(content).digest())
            size += len(content or b"")
            names[name] = None
    return PictureDigest(sha256=digest.hexdigest(), bytes=size, names=tuple(names))


def _content(row: RawRow, name: str) -> bytes | None:
    try:
        return row.picture_beside("pictures", name)
    except UserError:
        return None
