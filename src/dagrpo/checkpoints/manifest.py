"""manifest.json: the listed content of a checkpoint folder, and its check.

Written last, so a folder that has one is complete. `provenance.json`, which the stage frame adds later, is not in it.
The tensor digest does not depend on the format or the sharding: a conversion is exact if it does not change it.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dagrpo.checkpoints.tensors import Tensors, dtype_name, raw_bytes
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line
from dagrpo.utils.file_names import is_below
from dagrpo.utils.files import canonical_json, read_json, write_json
from dagrpo.utils.manifest import MANIFEST, FileEntry, entry_of, fault_of_size, fault_since_read

BESIDE = frozenset(
    {MANIFEST, "provenance.json", "choice.json"}
)  # files of a checkpoint folder that are not part of the checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSummary:
    """The weights of a checkpoint, independent of their files."""

    count: int
    dtypes: dict[str, int]  # type -> number of tensors of it
    digest: str  # see tensor_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of manifest.json. File names are relative to the folder, with forward slashes."""

    format: str  # the name of a format of dagrpo.checkpoints.formats
    files: dict[str, FileEntry]
    tensors: TensorSummary

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


_ADAPTER = TypeAdapter(Manifest)


def tensor_digest(tensors: Tensors) -> str:
    """Return one sha256 over name, type, shape and bytes of every tensor in name order, read one by one."""
    digest = hashlib.sha256()
    for name in sorted(tensors.specs):
        spec = tensors.specs[name]
        digest.update(canonical_json([name, dtype_name(spec.dtype), list(spec.shape)]).encode() + b"\n")
        digest.update(raw_bytes(tensors.read(name)))
    return digest.hexdigest()


def summary_of(tensors: Tensors) -> TensorSummary:
    """Summarise weights for a manifest. Reads every tensor."""
    dtypes = Counter(dtype_name(spec.dtype) for spec in tensors.specs.values())
    return TensorSummary(count=len(tensors.specs), dtypes=dict(dtypes), digest=tensor_digest(tensors))


def write_manifest(folder: Path, format: str, tensors: Tensors) -> Manifest:
    """Describe a finished folder in its manifest.json. `tensors` reads the weights back from that folder."""
    with ThreadPoolExecutor(1) as thread:  # hashing releases the interpreter lock
        summary = thread.submit(summary_of, tensors)
        files = {name: entry_of(folder / name, noted=True) for name in _names(folder)}
        manifest = Manifest(format=format, files=files, tensors=summary.result())
    save_manifest(folder, manifest)
    return manifest


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest.json of a finished folder."""
    write_json(folder / MANIFEST, asdict(manifest))


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.json without looking at the listed files. Raises UserError if it is missing or not a manifest."""
    try:
        manifest = _ADAPTER.validate_python(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        field = one_line(".".join(str(part) for part in first["loc"]), 80) or "the whole"
        raise UserError(
            f"{path} is not a checkpoint manifest ({field}: {first['msg']}): run the stage that makes it again."
        ) from None
    for name in manifest.files:
        if not is_below(name):
            raise UserError(
                f"{path} lists {brief(name)}, which is not a file inside its folder: do not use this checkpoint."
            )
    return manifest


def tensor_digest_of(folder: Path) -> str:
    """Return the tensor digest from a checkpoint's manifest, without reading its weights."""
    return read_manifest(folder / MANIFEST).tensors.digest


def verify(folder: Path) -> Manifest:
    """Check every file of a checkpoint against its manifest. Raises UserError naming a missing, changed or unlisted file."""
    manifest = verify_listing(folder)
    verify_digests(folder, manifest)
    return manifest


def verify_listing(folder: Path) -> Manifest:
    """Check, as the cheap part of `verify`, that exactly the listed files exist, with the listed lengths."""
    manifest = read_manifest(folder / MANIFEST)
    for name, entry in manifest.files.items():
        _require_none(folder, name, fault_of_size(folder / name, entry))
    for name in _names(folder):
        # An unlisted weight shard or tokenizer file would be loaded with the rest; hidden files of tools are not.
        if name not in manifest.files and not name.startswith("."):
            raise UserError(f"{folder / name} is not in {folder / MANIFEST}: remove it, or make the checkpoint again.")
    return manifest


def verify_digests(
    folder: Path, manifest: Manifest, fault: Callable[[Path, FileEntry], str | None] = fault_since_read
) -> None:
    """Check, as the other part of `verify`, that the bytes are the listed ones. `fault_of` reads a file that was read before, too."""
    for name, entry in manifest.files.items():
        _require_none(folder, name, fault(folder / name, entry))


def _require_none(folder: Path, name: str, fault: str | None) -> None:
    if fault is not None:
        raise UserError(
            f"{folder / name} {fault}, but {folder / MANIFEST} lists it: restore it, or make the checkpoint again."
        )


def _names(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name not in BESIDE)
