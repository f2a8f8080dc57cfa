"""From any checkpoint format to any other, exactly."""

import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from dagrpo import console
from dagrpo.checkpoints import store
from dagrpo.checkpoints.folder import require_format, require_tokenizer
from dagrpo.checkpoints.formats import CheckpointFormat, format_named
from dagrpo.checkpoints.manifest import Manifest, save_manifest, verify_listing
from dagrpo.checkpoints.planned import planned_copy
from dagrpo.checkpoints.resume import resumable_checkpoint
from dagrpo.checkpoints.source import Source, open_source
from dagrpo.checkpoints.tensors import Tensors, first_difference
from dagrpo.errors import UserError
from dagrpo.files import digest_of, sha256_of
from dagrpo.params.checkpoint import Checkpoint

HUGGINGFACE = "huggingface"
_NO_OPTIONS: Mapping[str, str] = {}


def convert(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """Hugging Face layout -> the trainer's format. UserError: `source` is not whole, or not in that layout."""
    return _between(source, HUGGINGFACE, destination, params.format, params.max_shard_bytes)


def export(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """The trainer's format -> Hugging Face layout, in shards of at most `params.max_shard_bytes`."""
    return _between(source, params.format, destination, HUGGINGFACE, params.max_shard_bytes)


def _between(source: Path, old: str, destination: Path, new: str, max_shard_bytes: int) -> Manifest:
    """Where both formats are one there is nothing to convert: the files are linked, whatever the size of their shards."""
    require_format(source, verify_listing(source), old)
    require_tokenizer(source)
    if old == new:
        return store.link(source, destination)
    return write_as(new, open_source(source), destination, max_shard_bytes)


def write_as(
    format: str, source: Source, destination: Path, max_shard_bytes: int, options: Mapping[str, str] = _NO_OPTIONS
) -> Manifest:
    """Write a checkpoint in another format. Names, types and bytes of all tensors stay, or it is an error.

    Goes on where the same conversion was killed. The bytes of the source are checked while they are copied. `options`
    are those of the format.
    """
    target = format_named(format)
    _require_options(target, options)
    files = [
        *(planned_copy(name, path) for name, path in source.files.items()),
        *target.extra_files(source.home, options),
        *target.planned_files(source.home, source.tensors, max_shard_bytes),
    ]
    making = digest_of([format, max_shard_bytes, dict(options), source.identity(), _code(source.format, format)])
    with resumable_checkpoint(destination, files, making) as unfinished, ThreadPoolExecutor(1) as thread:
        summary = thread.submit(source.summary)
        if unfinished.resumed:
            console.say(f"{destination}: {unfinished.resumed} of {len(files)} files are there already.")
        with console.progress(f"convert to {format}", len(files)) as shown:
            unfinished.write(shown)
            _require_the_same(source, target.open(unfinished.folder), unfinished.resumed > 0)
            written = Manifest(format=format, files=unfinished.settle(), tensors=summary.result())
        save_manifest(unfinished.folder, written)
    return written


def _require_options(format: CheckpointFormat, options: Mapping[str, str]) -> None:
    for name in options:
        if name not in format.options:
            known = f"it takes {', '.join(format.options)}" if format.options else "it takes none"
            raise UserError(f"the format {format.name} has no option {name!r} ({known}): leave it out or correct it.")


def _require_the_same(source: Source, written: Tensors, resumed: bool) -> None:
    difference = first_difference(source.tensors, written)
    if difference is not None and resumed:
        raise UserError(
            f"{difference} as an earlier run wrote it is not that of {source.folder}: what that run wrote is removed, "
            "run the same again."
        )
    assert difference is None, f"the conversion changed {difference}"


def _code(*formats: str) -> dict[str, str]:
    """What the bytes of a file depend on beside its content: this package, and those that the formats come from."""
    own = Path(__file__).parent
    folders = {own, *(Path(inspect.getfile(type(format_named(name)))).parent for name in formats)}
    modules = {f"{folder.name}/{path.relative_to(folder)}": path for folder in folders for path in folder.rglob("*.py")}
    return {name: sha256_of(path) for name, path in modules.items()} | {"torch": torch.__version__}
