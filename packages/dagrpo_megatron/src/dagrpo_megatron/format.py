"""A checkpoint folder in the `torch_dist` format: the weights below `release`, and Megatron's arguments beside them."""

from pathlib import Path

from dagrpo.checkpoints.megatron.arguments import FILE, megatron_arguments
from dagrpo.checkpoints.megatron.config import load_config
from dagrpo.checkpoints.megatron.layout import layout_of
from dagrpo.checkpoints.megatron.tensors import MegatronTensors
from dagrpo.checkpoints.megatron.weights import planned_weights
from dagrpo.checkpoints.planned import PlannedFile, planned_content
from dagrpo.checkpoints.tensors import Tensors


def planned_files(described_by: Path, tensors: Tensors, max_file_bytes: int) -> list[PlannedFile]:
    """The files of weights whose config.json is in `described_by`. UserError: Megatron cannot hold or train them."""
    config = load_config(described_by)
    arguments = "\n".join(megatron_arguments(config)) + "\n"
    return [
        *planned_weights(tensors, layout_of(config), max_file_bytes),
        planned_content(FILE, arguments.encode()),
    ]


def open_tensors(folder: Path, described_by: Path | None = None, base: Tensors | None = None) -> MegatronTensors:
    """The weights of a folder. `described_by` has its config.json where the folder itself has none."""
    return MegatronTensors(folder, layout_of(load_config(described_by or folder)), base)
