"""One raw row; its errors name file, row and field."""

import errno
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line, sentence

LONGEST_TEXT = 1_000_000  # characters: more than the longest prompt of any model
MOST_INTEGERS = 1000
LARGEST_PICTURE = 64 << 20  # bytes of its file
MOST_PICTURES = 100  # of a row
_NAME_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One raw row. Each accessor below raises UserError if the field does not have the requested type."""

    file: str
    number: int  # from 1: the line of a JSONL file
    fields: Mapping[str, Any]  # our name of a field -> its value as the file has it
    columns: Mapping[str, str] = field(default_factory=dict)  # our name of a field -> the file's, where it differs
    folder: Path = Path()  # what a picture's path is relative to
    # The file's names of the fields whose pictures were read from paths; the rows of a file share it.
    columns_of_paths: set[str] = field(default_factory=set, compare=False)

    def error(self, field: str, fault: str) -> UserError:
        """Return an error about one field of this row."""
        return fault_in(self.file, self.number, self.columns.get(field, field), fault)

    def text(self, field: str, longest: int = LONGEST_TEXT) -> str:
        """Return a text that is not blank; an integer becomes its digits."""
        value = self.fields[field]
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.error(field, f"is {type(value).__name__}, not text")
        text = str(value)
        if not text.strip():
            raise self.error(field, "is empty")
        if len(text) > longest:
            raise self.error(field, f"has {len(text):,} characters, which is more than {longest:,}")
        self._require_encodable(field, text)
        return text

    def _require_encodable(self, field: str, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.error(field, "holds half of a surrogate pair, which is not text") from None

    def integer(self, field: str) -> int:
        """Return an integer."""
        value = self.fields[field]
        if not _is_integer(value):
            raise self.error(field, f"is {type(value).__name__}, not an integer of 64 bits")
        return int(value)

    def integers(self, field: str) -> tuple[int, ...]:
        """Return a list of at least one integer."""
        value = self.fields[field]
        if not isinstance(value, list) or not value or not all(_is_integer(item) for item in value):
            raise self.error(field, f"is {brief(value)}, not a list of integers of 64 bits")
        if len(value) > MOST_INTEGERS:
            raise self.error(field, f"holds {len(value):,} integers, which is more than {MOST_INTEGERS}")
        return tuple(value)

    def texts(self, field: str) -> tuple[str, ...]:
        """Return a list of at least one text."""
        value = self.fields[field]
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(item, str) and item.strip() for item in value)
        ):
            raise self.error(field, f"is {brief(value)}, not a list of texts")
        if sum(map(len, value)) > LONGEST_TEXT:
            raise self.error(field, f"has more than {LONGEST_TEXT:,} characters")
        self._require_encodable(field, "".join(value))
        return tuple(value)

    def share(self, field: str) -> float | None:
        """Return a number from 0 to 1; None if the file says null."""
        value = self.fields[field]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.error(field, f"is {brief(value)}, not a number from 0 to 1")
        return float(value)

    def images(self, field: str) -> tuple[bytes, ...]:
        """Return pictures as RGB files (images.py), from their bytes or from a path relative to the file."""
        value = self.fields[field]
        listed = value if isinstance(value, list) else [value]
        if len(listed) > MOST_PICTURES:  # before any of them is unpacked
            raise self.error(field, f"holds {len(listed):,} pictures, which is more than {MOST_PICTURES}")
        return tuple(self._rgb_file(field, picture) for picture in listed)

    def _rgb_file(self, field: str, value: Any) -> bytes:
        from dagrpo.data.images import rgb_file  # Pillow: only the tasks with pictures need it

        content, path = self._picture(field, value), _path_in(value)
        try:
            return rgb_file(content)
        except ValueError as error:
            raise self.error(field, str(error) if path is None else f"{_named(path)}, which {error}") from None

    def _picture(self, field: str, value: Any) -> bytes:
        if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
            if len(value["bytes"]) > LARGEST_PICTURE:
                raise self.error(field, f"has more bytes than a picture may have ({LARGEST_PICTURE:,})")
            return bytes(value["bytes"])
        path = _path_in(value)
        if path is None:
            raise self.error(field, "holds neither the bytes of a picture nor the path of one")
        self.columns_of_paths.add(self.columns.get(field, field))
        return self.picture_beside(field, path)

    def pictures_named(self, field: str) -> list[str]:
        """Return the paths of the field's pictures, without embedded ones."""
        value = self.fields[field]
        listed = value if isinstance(value, list) else [value]
        return [path for path in map(_path_in, listed) if path is not None]

    def picture_beside(self, field: str, path: str) -> bytes:
        """Return the unchanged content of a picture, at a path below the folder of the row's file."""
        named = _named(path)
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise self.error(field, f"{named}, which is not below the file's own folder")
        try:
            content = _read_regular(self.folder / path, LARGEST_PICTURE)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "no file has such a name"
            raise self.error(field, f"{named}, which cannot be read beside the file ({reason})") from None
        if not (self.folder / path).resolve().is_relative_to(self.folder.resolve()):
            raise self.error(field, f"{named}, which a symbolic link leads out of the file's own folder")
        return content


def _read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file. Raises OSError for a larger one, and for a pipe or device, which may have no end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENODEV, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        raise OSError(errno.EOVERFLOW, f"it is larger than {most_bytes:,} bytes", str(path))
    return path.read_bytes()


def _path_in(picture: Any) -> str | None:
    """Return the path of a picture; None if the row holds its bytes, or has no picture."""
    if isinstance(picture, Mapping):
        picture = None if isinstance(picture.get("bytes"), bytes) else picture.get("path")
    return picture if isinstance(picture, str) and picture else None


def _named(path: str) -> str:
    return f"names '{one_line(path, _NAME_SHOWN)}'"


def fault_in(file: str, number: int, field: str, fault: str) -> UserError:
    """Return an error about raw data: file, row, field and fault."""
    return UserError(sentence(f"{file}, row {number}, field `{field}` {fault}: correct the file."))


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path such as `prompt.0.content`. Raises KeyError without one."""
    if path in values:
        return values[path]
    value: Any = values
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value[part]
        elif isinstance(value, Sequence) and not isinstance(value, str) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(path)
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
