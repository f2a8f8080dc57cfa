"""Raw files from a folder with copies of the hub's data sets.

<mirror>/gsm8k/train.jsonl, ...
"""

from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.data.source import SPLITS, Place, RawFile, Source

SUFFIXES = (".jsonl", ".parquet")


def mirror_place(source: Source, folder: Path) -> Place:
    """Return the file of each split, in whichever of the two formats it is there. UserError names the one that is missing.

    A split beyond train and test may be missing.
    """
    if not folder.is_dir():
        raise UserError(
            f"data.mirror is {folder}, which is not a folder: correct it, or set it to null to use the hub."
        )
    files = {split: _file(source, split, folder, Path(name)) for split, name in source.mirror_files.items()}
    present = {split: [file] for split, file in files.items() if file is not None}
    return Place(files=present, origin="mirror", revision=None)


def _file(source: Source, split: str, folder: Path, name: Path) -> RawFile | None:
    candidates = (name, *(name.with_suffix(suffix) for suffix in SUFFIXES))
    present = next((candidate for candidate in candidates if (folder / candidate).is_file()), None)
    if present is not None:
        path = folder / present
        return RawFile(name=str(present), label=str(path), fetch=lambda: path)
    if split not in SPLITS:
        return None
    other = next(suffix for suffix in SUFFIXES if suffix != name.suffix)
    raise UserError(
        f"{folder / name} is missing: put a copy of {source.repository} there (or one that ends in {other}), "
        "or correct data.mirror."
    )
