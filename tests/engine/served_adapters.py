"""Adapters of the tiny model as they are handed over, and the tiny model with one of them as transformers computes it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from dagrpo.checkpoints.lora_layers import PREFIX, matrices_of
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.engine.interface import AdapterForm

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FORM = AdapterForm(rank=4, alpha=8, target_modules=PARTS)


def adapter(model: Path, seed: int, parts: Sequence[str] = PARTS) -> StateTensors:
    """Random A and B of these layers of a model in the Hugging Face layout."""
    return adapter_of({name: tuple(weight.shape) for name, weight in _weights(model).items()}, seed, parts)


def adapter_of(layers: Mapping[str, Sequence[int]], seed: int, parts: Sequence[str] = PARTS) -> StateTensors:
    """The same of layers that are given with the shapes of their weights. Those that SGLang wants beside `parts` are 0."""
    drawn = torch.Generator().manual_seed(seed)
    matrices = {}
    for name, (outputs, inputs) in layers.items():
        if name.rpartition(".")[2] in PARTS:
            scale = 0.1 if name.rpartition(".")[2] in parts else 0.0
            down, up = matrices_of(name)
            matrices[down] = scale * torch.randn(FORM.rank, inputs, generator=drawn)
            matrices[up] = scale * torch.randn(outputs, FORM.rank, generator=drawn)
    return StateTensors(matrices)


def merged_into(model: Path, tensors: StateTensors, folder: Path) -> Path:
    """The model with W + alpha / rank * B A in the place of each W, computed here in double."""
    merged = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        for down in filter(lambda name: ".lora_A." in name, tensors.specs):
            layer = down.removeprefix(PREFIX).partition(".lora_A.")[0]
            low, up = tensors.read(down).double(), tensors.read(down.replace("lora_A", "lora_B")).double()
            weight = merged.get_submodule(layer).weight
            weight.copy_(weight.double() + FORM.alpha / FORM.rank * (up @ low))
    merged.save_pretrained(folder)
    return folder


def _weights(model: Path) -> dict[str, torch.Tensor]:
    modules = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).named_modules()
    return {name: module.weight for name, module in modules if isinstance(module, torch.nn.Linear)}
