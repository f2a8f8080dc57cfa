"""Raw files from a folder with copies (<mirror>/gsm8k/train.jsonl, ...), or from the hub.

From the Hugging Face hub they come at a pinned commit. `datasets` says which files a split consists of; it neither downloads nor
prepares them, which would take hours and gigabytes for the large data sets.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.data.source import SPLITS, Place, RawFile, Source

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
