"""Raw rows of a data set: from the hub at a pinned commit (hub.py), or from a folder with local copies (mirror.py).

Both give the same rows as plain text, and each row knows where it came from, so that whoever finds a fault in it can
name the file, the row and the field. What a row means is a task's business, not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data set on the hub, and where a mirror keeps its copy. A data set for evaluation only has no train split."""

    repository: str
    configuration: str | None  # None: the only one
    revision: str  # a full commit: a branch can move
    hub_splits: Mapping[str, str]  # our split -> the hub's
    mirror_files: Mapping[str, str]  # our split -> JSONL file under data.mirror
    columns: Mapping[str, Sequence[str]]  # field -> the names its column goes by
    rows: Mapping[str, int]  # our split -> rows of the whole data set


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One raw row, every field as text."""

    file: str
    number: int  # from 1: the line of a JSONL file
    fields: Mapping[str, str]

    def error(self, field: str, fault: str) -> ValueError:
        """A complaint about one field of this row, to be raised."""
        return fault_in(self.file, self.number, field, fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Everything a source holds."""

    rows: Mapping[str, Sequence[Row]]  # our split -> rows
    files: Mapping[str, str]  # raw file, relative to the repository or the mirror -> sha256
    origin: str  # "hub" or "mirror"
    revision: str | None  # None: a mirror vouches for no commit


def fault_in(file: str, number: int, field: str, fault: str) -> ValueError:
    """The one form of every complaint about raw data."""
    return ValueError(f"{file}, row {number}, field `{field}` {fault}: correct the file.")


def to_row(source: Source, file: str, number: int, values: Mapping[str, Any]) -> Row:
    """Pick a task's fields from one raw row. ValueError names the file, the row and the field that is missing or no text."""
    fields = {field: _field(file, number, names, values) for field, names in source.columns.items()}
    return Row(file=file, number=number, fields=fields)


def _field(file: str, number: int, names: Sequence[str], values: Mapping[str, Any]) -> str:
    name = next((name for name in names if name in values), None)
    if name is None:
        present = ", ".join(values) or "none"
        raise fault_in(file, number, names[0], f"is missing (the columns are: {present})")
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise fault_in(file, number, name, f"is {type(value).__name__}, not text")
    text = str(value)
    if not text.strip():
        raise fault_in(file, number, name, "is empty")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise fault_in(file, number, name, "holds half of a surrogate pair, which is not text")
    return text


def require_rows(source: Source, split: str, file: str, count: int, limit: int | None) -> None:
    """Refuse a copy that is not complete. With a limit on the split, a sample of the data set is enough."""
    if count == 0:
        raise ValueError(f"{file} holds no rows: replace it with a complete copy of {source.repository}.")
    if limit is None and count != source.rows[split]:
        raise ValueError(
            f"{file} holds {count:,} rows, but the {split} split of {source.repository} has {source.rows[split]:,}: "
            f"replace it with a complete copy, or set data.max_{split}."
        )
