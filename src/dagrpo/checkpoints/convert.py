"""Exact conversion between any two checkpoint formats."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from dagrpo.checkpoints import store
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.file_plan import PlannedFile, planned_copy, write_hashed
from dagrpo.checkpoints.folder import new_checkpoint, require_format, require_tokenizer
from dagrpo.checkpoints.formats import CheckpointFormat, format_named
from dagrpo.checkpoints.kept import restore
from dagrpo.checkpoints.manifest import Manifest, save_manifest, verify_listing
from dagrpo.checkpoints.source import Source, open_checkpoint
from dagrpo.checkpoints.tensors import first_difference
from dagrpo.core.errors import UserError
from dagrpo.utils import console
from dagrpo.utils.manifest import FileEntry
from dagrpo.utils.tempdirs import temporary_folder

HUGGINGFACE = "huggingface"
_NO_OPTIONS: Mapping[str, str] = {}
_SECONDS_FOR_THE_LOCK = 1.0  # another process may be about to release it


def convert(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """Convert the Hugging Face layout to the trainer's format. Raises UserError if `source` is incomplete, or in another layout."""
    return _between(source, HUGGINGFACE, destination, params.format, params.max_shard_bytes)


def export(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """Convert the trainer's format to the Hugging Face layout, in shards of at most `params.max_shard_bytes`."""
    return _between(source, params.format, destination, HUGGINGFACE, params.max_shard_bytes)


def export_kept(kept: Path, initial: Path, step: int, destination: Path) -> None:
    """Write the policy of a kept step in the Hugging Face layout. Raises UserError as `restore` does."""
    if verify_listing(initial).format == HUGGINGFACE:
        restore(kept, initial, step, destination)
        return
    with temporary_folder(destination.parent, "policy") as scratch:
        restore(kept, initial, step, scratch / "policy")
        write_as(HUGGINGFACE, open_checkpoint(scratch / "policy"), destination, store.DEFAULT_MAX_SHARD_BYTES)


def _between(source: Path, old: str, destination: Path, new: str, max_shard_bytes: int) -> Manifest:
    """Convert between formats; if both are the same, link the files, whatever the size of their shards."""
    require_format(source, verify_listing(source), old)
    require_tokenizer(source)
    if old == new:
        return store.link(source, destination)
    return write_as(new, open_checkpoint(source), destination, max_shard_bytes)


def write_as(
    format: str, source: Source, destination: Path, max_shard_bytes: int, options: Mapping[str, str] = _NO_OPTIONS
) -> Manifest:
    """Write a checkpoint in another format. Fails unless names, types and bytes of all tensors stay.

    The bytes of the source are checked while they are copied. `options` are those of the format. Raises UserError if another
    process converts to `destination`.
    """
    target = format_named(format)
    _require_options(target, options)
    files = [
        *(planned_copy(name, path) for name, path in source.files.items()),
        *target.extra_files(source.home, options),
        *target.planned_files(source.home, source.tensors, max_shard_bytes),
    ]
    needed_bytes = sum(file.bytes for file in files)
    with (
        _only_conversion(destination),
        new_checkpoint(destination, needed_bytes) as folder,
        ThreadPoolExecutor(1) as thread,
    ):
        summary = thread.submit(source.summary)
        entries = _write(folder, files, f"convert to {format}")
        difference = first_difference(source.tensors, target.open(folder))
        assert difference is None, f"the conversion changed {difference}"
        written = Manifest(format=format, files=entries, tensors=summary.result())
        save_manifest(folder, written)
    return written


def _write(folder: Path, files: Sequence[PlannedFile], doing: str) -> dict[str, FileEntry]:
    entries = {}
    with console.progress(doing, len(files)) as bar:
        for file in files:
            entries[file.name] = FileEntry(sha256=write_hashed(folder, file), bytes=file.bytes)
            bar.advance(note=file.name)
    return dict(sorted(entries.items()))


@contextmanager
def _only_conversion(destination: Path) -> Iterator[None]:
    """Lock a destination against other conversions: the next writer removes the temporary folders of those before it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    path = destination.parent / f".{destination.name}.convert.lock"
    lock = FileLock(path, timeout=_SECONDS_FOR_THE_LOCK)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{destination} is being written by another conversion: wait for it, or give another folder."
        ) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # a process that waits for this file sees that it is gone, and makes another
        lock.release()


def _require_options(format: CheckpointFormat, options: Mapping[str, str]) -> None:
    for name in options:
        if name not in format.options:
            known = f"it takes {', '.join(format.options)}" if format.options else "it takes none"
            raise UserError(f"the format {format.name} has no option {name!r} ({known}): leave it out or correct it.")
