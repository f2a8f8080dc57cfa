"""Between the Hugging Face layout and the trainer's sharded format, whichever `checkpoint.format` names."""

from pathlib import Path

from dagrpo.checkpoints import dcp
from dagrpo.checkpoints.hf import HuggingFaceTensors
from dagrpo.checkpoints.manifest import MANIFEST, Manifest, read_manifest
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.params.checkpoint import Checkpoint


def convert(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """Hugging Face layout -> the trainer's format. ValueError: `source` is not whole, or not in that layout."""
    match params.format:
        case "dcp":
            return dcp.to_dcp(source, destination)


def export(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """The trainer's format -> Hugging Face layout, in shards of at most `params.max_shard_bytes`."""
    match params.format:
        case "dcp":
            return dcp.to_hf(source, destination, params.max_shard_bytes)


def open_tensors(folder: Path) -> Tensors:
    """The weights of a checkpoint in any format."""
    match read_manifest(folder / MANIFEST).format:
        case "huggingface":
            return HuggingFaceTensors(folder)
        case "dcp":
            return dcp.DcpTensors(folder)
