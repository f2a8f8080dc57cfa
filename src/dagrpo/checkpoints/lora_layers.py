"""Models with a PEFT LoRA adapter: base weights, updates, adapter files.

The base weights never change: a merge is W + s B A in a separate tensor, so that repeated merges give the same bits. The trainer
adds adapters to models (trainer/model/lora.py); lora.py reads other adapters from folders. Imports no PEFT: adapted layers are
recognised by their attributes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dagrpo.checkpoints.file_plan import PlannedFile, planned_content
from dagrpo.checkpoints.folder import ADAPTER
from dagrpo.checkpoints.safetensors_file import planned_safetensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.utils.files import json_text

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # of the names of modules in PEFT's files
NAME = "default"  # of the only adapter, as PEFT calls it
_BASE = ".base_layer."
_LANGUAGE_MODEL = "CAUSAL_LM"
BASE_DIGEST = "base_tensor_digest"  # in the metadata of WEIGHTS: see tensor_digest of manifest.py


def low_rank_update(up: Tensor, down: Tensor, scale: float) -> Tensor:
    """Return s B A in float32 (https://arxiv.org/abs/2106.09685). up: B, [outputs, rank]; down: A, [rank, inputs]."""
    return scale * (up.to(torch.float32) @ down.to(torch.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The low-rank update of one weight; its tensors are the trainer's, possibly sharded over ranks."""

    up: Tensor  # [outputs, rank]
    down: Tensor  # [rank, inputs]
    scale: float  # alpha / rank

    def merged(self, weight: Tensor) -> Tensor:
        """Return weight plus update, summed in float32, in a new tensor. Every rank calls this; weight: [outputs, inputs], whole."""
        return weight.to(torch.float32) + low_rank_update(whole(self.up), whole(self.down), self.scale)


def low_rank_updates(model: torch.nn.Module) -> dict[str, LowRank]:
    """Return the updates by their weights' names in the model without an adapter; {} if it has none."""
    return {
        f"{name}.weight": LowRank(
            up=layer.lora_B[NAME].weight, down=layer.lora_A[NAME].weight, scale=layer.scaling[NAME]
        )
        for name, layer in _adapted_layers(model)
    }


def without_adapter(state: Mapping[str, Tensor], model: torch.nn.Module) -> dict[str, Tensor]:
    """Return a state dict of the model as it would be without its adapter."""
    added = {
        f"{name}.{part}"
        for name, layer in _adapted_layers(model)
        for part in layer.state_dict()
        if not part.startswith("base_layer.")
    }
    return {name.replace(_BASE, "."): tensor for name, tensor in state.items() if name not in added}


def adapter_files(model: torch.nn.Module, base_digest: str) -> list[PlannedFile]:
    """Plan the adapter in PEFT's format, in the folder ADAPTER of a checkpoint; [] without an adapter. Every rank calls this.

    base_digest: of the base tensors, recorded in the file, so that it is merged into no others.
    """
    tensors = adapter_tensors(model)
    if not tensors:
        return []
    metadata = {"format": "pt", BASE_DIGEST: base_digest}
    return [
        planned_content(f"{ADAPTER}/{CONFIG}", json_text(_config(model)).encode()),
        planned_safetensors(f"{ADAPTER}/{WEIGHTS}", StateTensors(tensors), metadata),
    ]


def adapter_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return A and B of every layer, under their names in PEFT's files; {} without an adapter. Every rank calls this."""
    tensors = {}
    for weight, update in low_rank_updates(model).items():
        for matrix, tensor in zip(matrices_of(weight.removesuffix(".weight")), (update.down, update.up), strict=True):
            tensors[matrix] = whole(tensor).cpu().contiguous()
    return tensors


def matrices_of(layer: str) -> tuple[str, str]:
    """Return the names of a layer's A and B in PEFT's files."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def adapter_config(rank: int, alpha: int, target_modules: list[str]) -> dict[str, Any]:
    """Return the adapter's configuration for PEFT and SGLang, without the base's folder, which differs between machines."""
    return {
        "peft_type": "LORA",
        "task_type": _LANGUAGE_MODEL,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": target_modules,
    }


def _config(model: torch.nn.Module) -> dict[str, Any]:
    layers = dict(_adapted_layers(model))
    first = next(iter(layers.values()))
    return adapter_config(first.r[NAME], first.lora_alpha[NAME], _shortest_names(model, set(layers)))


def _shortest_names(model: torch.nn.Module, adapted: set[str]) -> list[str]:
    """Return the last parts of the layers' names if these are unambiguous, as readers expect; else the whole names."""
    last_parts = {name.rpartition(".")[2] for name in adapted}
    matched = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in last_parts}
    return sorted(last_parts if matched == adapted else adapted)


def whole(tensor: Tensor) -> Tensor:
    """Gather the whole of a tensor that may be sharded over ranks: then every rank calls this."""
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def _adapted_layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            yield name, module
