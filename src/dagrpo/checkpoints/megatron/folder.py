"""A checkpoint folder in the `torch_dist` format: the weights below `release`, and Megatron's arguments beside them."""

from pathlib import Path

from dagrpo.checkpoints.megatron.arguments import FILE, megatron_arguments
from dagrpo.checkpoints.megatron.config import load_config
from dagrpo.checkpoints.megatron.layout import layout_of
from dagrpo.checkpoints.megatron.tensors import MegatronTensors
from dagrpo.checkpoints.megatron.weights import write_weights
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.files import write_text


def write_tensors(folder: Path, tensors: Tensors, max_file_bytes: int) -> None:
    """Write weights into a folder that has its config.json. ValueError: Megatron cannot hold them, or train them."""
    config = load_config(folder)
    arguments = megatron_arguments(config)
    write_weights(folder, tensors, layout_of(config), max_file_bytes)
    write_text(folder / FILE, "\n".join(arguments) + "\n")


def open_tensors(folder: Path, described_by: Path | None = None, base: Tensors | None = None) -> MegatronTensors:
    """The weights of a folder. `described_by` has its config.json where the folder itself has none."""
    return MegatronTensors(folder, layout_of(load_config(described_by or folder)), base)
