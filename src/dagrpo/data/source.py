"""Data sets: names, places of their files, and row counts.

Files come from the hub at a pinned commit or from a folder with local copies (raw_files.py), and are read by the same code (reading.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.core.errors import UserError
from dagrpo.data.raw_row import RawRow, fault_in, value_at

if TYPE_CHECKING:
    from dagrpo.data.config import Data

SPLITS = ("train", "test")  # every prepared task has these
VALIDATION = "validation"  # comes beside them; it has no rows where the source has no such split


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data set on the hub, and the files of its copy in a mirror.

    One for evaluation only has no train split; from one without a test split, some train problems are held out.
    """

    repository: str
    configuration: str | None = None  # None: the only one
    revision: str = ""  # a full commit: a branch can move; "": unknown, so that it is read from a mirror alone
    hub_splits: Mapping[str, str]  # our split -> the hub's
    mirror_files: Mapping[str, str]  # our split -> file under data.mirror, .jsonl or another form (reading.py)
    columns: Mapping[str, Sequence[str]]  # field -> the dotted paths it goes by: `answer`, `prompt.0.content`
    optional: Sequence[str] = ()  # fields that a row may lack: they read as null
    # Our split -> rows of the whole data set, where they are known; copies are not counted.
    rows: Mapping[str, int] = field(default_factory=dict)
    copies: Sequence[str] = ()  # rows that agree in these fields are copies of one; (): every row stands for itself
    untested: bool = False  # written from the data set's description: no real row of it has been read by its task
    scored_as: str = ""  # its rows' `data_source`, where verl's own reward knows another name; "": the repository
    sampled: bool = False  # too large to be read whole: reading ends with data.max_train + data.held_out problems

    @property
    def held_out(self) -> bool:
        """Return whether the source has a train split only."""
        return "test" not in self.mirror_files


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """One file of a split, fetched when it is read."""

    name: str  # relative to the repository or to the mirror
    label: str  # what complaints call it
    fetch: Callable[[], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Files of a source, and where they come from."""

    files: Mapping[str, Sequence[RawFile]]  # our split -> its files, in order
    origin: str  # "hub" or "mirror"
    revision: str | None  # None: a mirror vouches for no commit


def raw_row(
    source: Source, label: str, folder: Path, number: int, values: Mapping[str, Any], columns_of_paths: set[str]
) -> RawRow:
    """Return one raw row, with the fields that the source names. Raises UserError, which names the file, the row and the missing field."""
    fields, columns = {}, {}
    for name, paths in source.columns.items():
        columns[name], fields[name] = _find(source, label, number, name, paths, values)
    return RawRow(
        file=label, number=number, fields=fields, columns=columns, folder=folder, columns_of_paths=columns_of_paths
    )


def _find(
    source: Source, label: str, number: int, field: str, names: Sequence[str], values: Mapping[str, Any]
) -> tuple[str, Any]:
    for name in names:
        try:
            return name, value_at(values, name)
        except KeyError:
            continue
    if field in source.optional:
        return names[0], None
    raise fault_in(label, number, names[0], f"is missing (the columns are: {', '.join(values) or 'none'})")


def limit_of(split: str, params: "Data") -> int | None:
    """Return the largest number of problems of a split; None: all."""
    return params.max_train if split == "train" else params.max_test


def require_rows(source: Source, split: str, label: str, count: int, params: "Data") -> None:
    """Raise UserError if a copy is not complete. With a limit on the split, a part of the data set is enough."""
    if count == 0:
        raise UserError(f"{label} holds no rows: replace it with a complete copy of {source.repository}.")
    if limit_of(split, params) is None and count != source.rows.get(split, count):
        setting = "data.max_train" if split == "train" else "data.max_test"
        raise UserError(
            f"{label} holds {count:,} rows, but the {split} split of {source.repository} has {source.rows[split]:,}: "
            f"replace it with a complete copy, or, to use a part of the data set, set {setting} (to {count} for this part)."
        )
