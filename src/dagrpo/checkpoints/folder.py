"""Atomic creation of checkpoint folders, and their auxiliary files.

Those files (config, generation config, tokenizer, chat template, origin) pass through every conversion byte for byte.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import torch

from dagrpo.checkpoints.formats import FORMATS, format_named
from dagrpo.checkpoints.manifest import BESIDE, Manifest, read_manifest
from dagrpo.checkpoints.tensors import dtype_name
from dagrpo.checkpoints.weight_map import require_own
from dagrpo.core.errors import UserError
from dagrpo.utils.failures import full_disk_naming
from dagrpo.utils.files import atomic_folder, read_object, require_space, write_text
from dagrpo.utils.manifest import MANIFEST

CONFIG = "config.json"
ADAPTER = "adapter"  # the folder of a LoRA adapter inside a checkpoint
AUXILIARY = ("*.json", "*.jinja", "*.model", "*.txt", "LICENSE*")  # patterns of a model's files beside its weights
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@contextmanager
def new_checkpoint(destination: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a folder to fill, manifest last; it becomes `destination` if all goes well, else it is removed.

    Raises OSError with the destination's name if the disk is full, before writing if that can be foreseen.
    """
    with full_disk_naming(destination), atomic_folder(destination) as folder:
        require_space(folder, needed_bytes)  # leftovers of a killed run are removed by now
        yield folder


def require_replaceable(destination: Path, sources: Iterable[Path]) -> None:
    """Raise UserError if `destination` is a non-checkpoint with content, or holds a source: the old folder is deleted at the end."""
    for source in sources:
        if destination.resolve() in (source.resolve(), *source.resolve().parents):
            raise UserError(f"{destination} holds {source}, which is read: give another folder to write.")
    if (
        destination.exists()
        and not (destination / MANIFEST).is_file()
        and (not destination.is_dir() or any(destination.iterdir()))
    ):
        raise UserError(f"{destination} exists and is not a checkpoint of ours: give another folder, or remove it.")


def auxiliary_files(folder: Path) -> list[str]:
    """List the files of a model's folder that are neither its weights nor belong to one format of them.

    Raises UserError if the folder has no manifest, and one of them is a link out of it.
    """
    if (folder / MANIFEST).is_file():
        return _listed_auxiliary_files(read_manifest(folder / MANIFEST))
    return _unlisted_auxiliary_files(folder)


def _listed_auxiliary_files(manifest: Manifest) -> list[str]:
    format = format_named(manifest.format)
    # A LoRA adapter in its own folder is copied too, with its weights.
    return [name for name in manifest.files if name.startswith(f"{ADAPTER}/") or not format.owns(name)]


def _unlisted_auxiliary_files(folder: Path) -> list[str]:
    """List the auxiliary files of a folder without a manifest, such as a download: a model's files, no weights of other formats."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    names_to_copy = [
        name for name in names if name not in BESIDE and any(fnmatch(name, pattern) for pattern in AUXILIARY)
    ]
    formats = [FORMATS.get(name) for name in FORMATS.names()]
    going_along = [
        name
        for name in names_to_copy
        if not any(format.owns(name) for format in formats) and not name.endswith(".bin.index.json")
    ]
    for name in going_along:
        require_own(folder, name)
    return going_along


def copy_auxiliary(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copy all auxiliary files byte for byte beside other weights; an adapter is not among them."""
    names = [name for name in _listed_auxiliary_files(manifest) if not name.startswith(f"{ADAPTER}/")]
    copy_files({name: source / name for name in names}, folder)


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files byte for byte, under new names, which may include folders."""
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)


def set_config_dtype(folder: Path, dtype: torch.dtype) -> None:
    """Make config.json name the type of the weights; a file that does so already keeps its bytes."""
    config = read_object(folder / CONFIG)
    if config.get("dtype", config.get("torch_dtype")) == dtype_name(dtype):
        return
    config.pop("torch_dtype", None)
    config["dtype"] = dtype_name(dtype)
    write_text(folder / CONFIG, json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def require_format(folder: Path, manifest: Manifest, format: str) -> None:
    """Raise UserError for a checkpoint of another format."""
    if manifest.format != format:
        raise UserError(f"{folder} is a {manifest.format} checkpoint where a {format} one is needed: convert it first.")


def require_config(folder: Path) -> None:
    """Raise UserError for a model folder without a config.json."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}: copy that of the model it comes from into it.")


def require_tokenizer(folder: Path) -> None:
    """Raise UserError for a model folder without a tokenizer: nothing could be sampled from it."""
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise UserError(
            f"{folder} has no tokenizer ({' or '.join(_TOKENIZERS[:2])}): "
            "copy the tokenizer files of the model it comes from into it."
        )


def require_chat_template(folder: Path) -> None:
    """Raise UserError for a model folder whose tokenizer cannot render a conversation: every prompt is one."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return
    config = folder / "tokenizer_config.json"
    if not (config.is_file() and read_object(config).get("chat_template")):
        raise UserError(
            f"{folder} has no chat template (chat_template.jinja): add one, or choose a model that was tuned for chat."
        )
