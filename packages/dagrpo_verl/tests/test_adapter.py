"""The adapter that verl saves beside the weights is added to them."""

import torch

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo_verl.running import MergedAdapter


def test_each_weight_gets_its_update_and_the_name_of_the_model_without_an_adapter() -> None:
    layer = "base_model.model.model.layers.0.q_proj"
    saved = {
        "base_model.model.model.norm.weight": torch.tensor([5.0]),
        f"{layer}.base_layer.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        f"{layer}.base_layer.bias": torch.tensor([6.0, 7.0]),
        f"{layer}.lora_A.default.weight": torch.tensor([[1.0, 10.0]]),
        f"{layer}.lora_B.default.weight": torch.tensor([[1.0], [2.0]]),
    }
    names = ("model.norm.weight", "model.layers.0.q_proj.weight", "model.layers.0.q_proj.bias")
    merged = MergedAdapter(StateTensors(saved), scale=3.0, names=names)
    found = {name: merged.read(name).tolist() for name in merged.specs}
    assert found == {
        "model.norm.weight": [5.0],
        "model.layers.0.q_proj.weight": [[4.0, 32.0], [9.0, 64.0]],
        "model.layers.0.q_proj.bias": [6.0, 7.0],
    }


def test_both_parts_of_qwen2_5_vl_get_the_names_of_its_checkpoints() -> None:
    start = "base_model.model.model"
    saved = {f"{start}.language_model.norm.weight": torch.ones(1), f"{start}.visual.merger.weight": torch.ones(1)}
    names = ("model.norm.weight", "visual.merger.weight")
    assert tuple(MergedAdapter(StateTensors(saved), scale=1.0, names=names).specs) == names
    longer = ("model.language_model.norm.weight", "model.visual.merger.weight")  # Qwen3-VL's
    assert tuple(MergedAdapter(StateTensors(saved), scale=1.0, names=longer).specs) == longer
