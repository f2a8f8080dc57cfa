"""Hugging Face layout: sharded safetensors with an index.

It lies beside config and tokenizer. Reading maps the files and writing streams them: neither ever holds the whole model.
"""

from pathlib import Path

from torch import Tensor

from dagrpo.checkpoints.file_plan import PlannedFile, planned_content
from dagrpo.checkpoints.formats import CheckpointFormat
from dagrpo.checkpoints.safetensors_file import SafetensorsFile, plan_shards, planned_safetensors
from dagrpo.checkpoints.tensors import Tensors, TensorSpec, total_bytes
from dagrpo.checkpoints.weight_map import INDEX, WEIGHTS, files_of_weights, read_weight_map
from dagrpo.core.errors import UserError
from dagrpo.utils.files import json_text


class HuggingFaceTensors:
    """The weights of a folder in the Hugging Face layout, mapped into memory and read on access.

    Raises UserError if there are no safetensors weights, a shard is missing or truncated, or the index contradicts its files.
    """

    def __init__(self, folder: Path) -> None:
        self.specs: dict[str, TensorSpec] = {}
        self._files: dict[str, SafetensorsFile] = {}  # by tensor
        files = {file: SafetensorsFile(folder / file) for file in files_of_weights(folder)}
        whole = dict.fromkeys(files[WEIGHTS].names, WEIGHTS) if WEIGHTS in files else {}
        weight_map = read_weight_map(folder / INDEX) if (folder / INDEX).is_file() else whole
        for name, file in sorted(weight_map.items()):
            if name not in files[file].names:
                raise UserError(
                    f"{folder / file} lacks the tensor {name} that {folder / INDEX} promises: copy or make it again."
                )
            self.specs[name] = files[file].spec(name)
            self._files[name] = files[file]

    def read(self, name: str) -> Tensor:
        return self._files[name].read(name)


def planned_files(tensors: Tensors, max_shard_bytes: int) -> list[PlannedFile]:
    """Plan one file, or an index and shards of at most `max_shard_bytes` of weights."""
    shards = plan_shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        return [planned_safetensors(WEIGHTS, tensors, {"format": "pt"})]
    files = {f"model-{n:05d}-of-{len(shards):05d}.safetensors": shard for n, shard in enumerate(shards, start=1)}
    weight_map = {name: file for file, shard in files.items() for name in shard.specs}
    index = json_text({"metadata": {"total_size": total_bytes(tensors)}, "weight_map": weight_map})
    return [
        *(planned_safetensors(file, shard, {"format": "pt"}) for file, shard in files.items()),
        planned_content(INDEX, index.encode()),
    ]


class HuggingFace(CheckpointFormat):
    """The layout of the Hugging Face hub, read by transformers, SGLang and vLLM."""

    name = "huggingface"
    own_files = ("*.safetensors", "*.safetensors.index.json")

    def recognises(self, folder: Path) -> bool:
        return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()

    def open(self, folder: Path, base: Path | None = None) -> HuggingFaceTensors:
        return HuggingFaceTensors(folder)

    def planned_files(self, described_by: Path, tensors: Tensors, max_shard_bytes: int) -> list[PlannedFile]:
        return planned_files(tensors, max_shard_bytes)


FORMAT = HuggingFace()
