"""Data sets: names, places of their files, and row counts.

Files come from a folder with copies (<mirror>/gsm8k/train.jsonl, ...), or from the hub at a pinned commit, and are read by the same code
(reading.py). `datasets` says which files of the hub a split consists of; it neither downloads nor prepares them, which would take hours
and gigabytes for the large data sets.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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


if TYPE_CHECKING:
    from dagrpo.utils.hub import Wanted

SUFFIXES = (".jsonl", ".parquet", ".json", ".csv", ".jsonl.gz")


def mirror_place(source: Source, folder: Path) -> Place:
    """Return each split's file, which ends in one of SUFFIXES. Raises UserError if train or test is missing.

    A split beyond train and test may be missing.
    """
    if not folder.is_dir():
        raise UserError(
            f"data.mirror is {folder}, which is not a folder: correct it, or set it to null to use the hub."
        )
    if mistake := missing_in_mirror(source, folder):
        raise UserError(mistake)
    files = {split: _mirror_file(folder, Path(name)) for split, name in source.mirror_files.items()}
    present = {split: [file] for split, file in files.items() if file is not None}
    return Place(files=present, origin="mirror", revision=None)


def files_in_mirror(source: Source, folder: Path) -> list[Path]:
    """Return the files of a source that lie in a mirror."""
    found = (_mirror_file(folder, Path(name)) for name in source.mirror_files.values())
    return [file.fetch() for file in found if file is not None]


def missing_in_mirror(source: Source, folder: Path) -> str | None:
    """Return a sentence on the files of train and test that are missing; None if they are there."""
    needed = [Path(name) for split, name in source.mirror_files.items() if split in SPLITS]
    missing = [name for name in needed if _mirror_file(folder, name) is None]
    if not missing:
        return None
    if (folder / missing[0]).is_dir():
        return f"{folder / missing[0]} is a folder, not a file: put a copy of {source.repository} there, or correct data.mirror."
    other = next(suffix for suffix in SUFFIXES if suffix != missing[0].suffix)
    return (
        f"{' and '.join(str(folder / name) for name in missing)} {'is' if len(missing) == 1 else 'are'} missing: put a copy of "
        f"{source.repository} there (or one that ends in {other}), or correct data.mirror."
    )


def _mirror_file(folder: Path, name: Path) -> RawFile | None:
    candidates = (name, *(name.with_suffix(suffix) for suffix in SUFFIXES))  # of names with one suffix
    present = next((candidate for candidate in candidates if (folder / candidate).is_file()), None)
    if present is None:
        return None
    path = folder / present
    return RawFile(name=str(present), label=str(path), fetch=lambda: path)


def hub_place(source: Source) -> Place:
    """Return the files of each split, downloaded when they are read. Raises UserError, with a remedy, if the hub does not have them."""
    if not source.revision:
        raise UserError(
            f"{source.repository} has no commit in its task's file, so it is not read from the hub: set data.mirror to a folder with "
            f"{', '.join(source.mirror_files.values())} (docs/tasks.md)."
        )
    urls = _urls(source)
    files = {}
    for split, name in source.hub_splits.items():
        if name not in urls:
            where = f"{source.repository}@{source.revision[:12]} ({name})"
            raise UserError(
                f"{where} is not a split of the data set, which has {', '.join(urls)}: use data.mirror instead."
            )
        files[split] = [_hub_file(source, url) for url in urls[name]]
    return Place(files=files, origin="hub", revision=source.revision)


def _urls(source: Source) -> dict[str, list[str]]:
    """Return the hub's splits, each with the hf:// addresses of its files.

    `datasets` gets an empty cache folder: from its shared cache it would take any commit if the hub does not answer.
    """
    from dagrpo.utils.hub import readable_hub_errors, require_answer

    require_answer(wanted_data(source))
    import datasets  # 1 to 4 s, and only a hub that answers needs it

    with (
        readable_hub_errors(wanted_data(source), datasets.exceptions.DatasetsError),
        tempfile.TemporaryDirectory() as cache,
    ):
        builder = datasets.load_dataset_builder(
            source.repository, source.configuration, revision=source.revision, cache_dir=cache
        )
        return {str(split): [str(url) for url in urls] for split, urls in builder.config.data_files.items()}


def _hub_file(source: Source, url: str) -> RawFile:
    """Return one file. Raises UserError if it is not of the pinned commit."""
    prefix = f"hf://datasets/{source.repository}@{source.revision}/"
    if not url.startswith(prefix):
        raise UserError(
            f"{url} is not a file of {source.repository} at commit {source.revision}: remove what shadows it."
        )
    name = url.removeprefix(prefix)
    label = f"{source.repository}@{source.revision[:12]}/{name}"
    return RawFile(name=name, label=label, fetch=partial(_fetch, source, name))


def _fetch(source: Source, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    from dagrpo.utils.hub import readable_hub_errors

    with readable_hub_errors(wanted_data(source)):
        return Path(hf_hub_download(source.repository, name, repo_type="dataset", revision=source.revision))


def wanted_data(source: Source) -> "Wanted":
    """Return the request for a data set of the hub."""
    from dagrpo.utils.hub import Wanted

    return Wanted(
        repository=source.repository,
        revision=source.revision,
        kind="dataset",
        correct="choose another task",
        instead="set data.mirror to a folder with a local copy",
    )
