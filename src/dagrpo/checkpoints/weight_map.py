"""Index of sharded weights: the file of each tensor, checked.

The check precedes any opening of a file, since an index may come from an untrusted source. The formats read the files.
"""

from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.utils.file_names import is_plain, leads_out
from dagrpo.utils.files import read_json
from dagrpo.utils.manifest import MANIFEST

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def files_of_weights(folder: Path) -> list[str]:
    """List a folder's weight files. Raises UserError if it has no weights, lacks a listed file, or one is a link out of the folder."""
    index = folder / INDEX
    if index.is_file():
        return [require_shard(folder, name) for name in sorted(set(read_weight_map(index).values()))]
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder} has no weights ({WEIGHTS} or {INDEX}): choose a model in safetensors format.")
    require_own(folder, WEIGHTS)
    return [WEIGHTS]


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor. Raises UserError for an invalid index, or one naming other than the folder's safetensors files."""
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no weight_map: copy or download it again.")
    for name in weight_map.values():
        if not is_plain(name) or not name.endswith(".safetensors"):
            raise UserError(
                f"{index} names {brief(name)}, which is not a safetensors file of its folder: do not use this checkpoint."
            )
    return weight_map


def require_shard(folder: Path, name: str) -> str:
    """Return the name of a file in the index. Raises UserError if the file is missing."""
    if not (folder / name).is_file():
        raise UserError(f"{folder / name} is missing, but {folder / INDEX} names it: copy or download it again.")
    require_own(folder, name)
    return name


def require_own(folder: Path, name: str) -> None:
    """Raise UserError for a file that is a link out of a folder for whose content no manifest vouches."""
    if not (folder / MANIFEST).is_file() and leads_out(folder / name):
        raise UserError(f"{folder / name} is a link out of its folder: put the file itself there.")
