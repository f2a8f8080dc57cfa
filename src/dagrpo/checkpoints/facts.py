"""Facts about a new checkpoint: figures for the run, summary lines."""

from pathlib import Path

from dagrpo.checkpoints.formats import format_named
from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import parameter_count


def figures(folder: Path, manifest: Manifest) -> dict[str, float]:
    """Return the size of a checkpoint: parameters (tied weights once) and bytes of all its files."""
    return {"parameters": parameter_count(open_tensors(folder)), "bytes": manifest.bytes}


def lines(folder: Path, manifest: Manifest) -> list[tuple[str, str]]:
    """Return the size as lines of text, with format, types and the beginning of the tensor digest."""
    size = figures(folder, manifest)
    return [
        ("folder", str(folder)),
        ("format", manifest.format),
        ("parameters", f"{size['parameters']:,}"),
        ("size", f"{size['bytes'] / 1e6:,.1f} MB"),
        ("types", ", ".join(f"{number} {dtype}" for dtype, number in manifest.tensors.dtypes.items())),
        ("tensor digest", manifest.tensors.digest[:16]),
        *format_named(manifest.format).facts(folder),
    ]
