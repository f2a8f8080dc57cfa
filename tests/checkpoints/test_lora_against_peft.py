"""Adapters as PEFT itself makes, saves, merges and loads them."""

from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
from tests.checkpoints.conftest import run_command
from transformers import AutoModelForCausalLM, PreTrainedModel

from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.source import open_tensors

TOKENS = torch.tensor([[1, 5, 7, 3, 2]])
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION},
    "every linear layer, odd rank": {"r": 3, "lora_alpha": 5, "target_modules": "all-linear"},
    "rank-stabilised": {"r": 3, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]},
    "ranks and alphas by name": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": [*ATTENTION, "down_proj"],
        "rank_pattern": {"down_proj": 2, r"layers\.1\.self_attn\.q_proj": 6},
        "alpha_pattern": {"k_proj": 3, r"model\.layers\.0\.mlp\.down_proj": 16},
    },
    "by name and rank-stabilised": {
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": ATTENTION,
        "rank_pattern": {"v_proj": 5},
        "alpha_pattern": {r"layers\.0\.self_attn\.v_proj": 2},
    },
    **{
        f"begun as {start}": {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": start}
        for start in (False, "gaussian", "orthogonal")
    },
}


def _model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _adapter(pristine: Path, folder: Path, settings: dict[str, Any]) -> Path:
    """Random A and B: PEFT begins with a B of zeros, which would change nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = peft.get_peft_model(_model(pristine), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("settings", ADAPTERS.values(), ids=ADAPTERS.keys())
def test_a_merge_is_that_of_peft(settings: dict[str, Any], pristine: Path, tmp_path: Path) -> None:
    adapter = _adapter(pristine, tmp_path / "adapter", settings)
    theirs = peft.PeftModel.from_pretrained(_model(pristine), adapter).merge_and_unload().state_dict()
    run_command("convert", pristine, tmp_path / "merged", "--to", "hf", "--adapter", adapter)
    before, ours = open_tensors(pristine), open_tensors(tmp_path / "merged")
    adapted = {
        name.rpartition(".lora_")[0] for name in safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    }
    changed = {name for name in ours.specs if not torch.equal(ours.read(name), before.read(name))}
    assert changed == {f"{name.removeprefix('base_model.model.')}.weight" for name in adapted}
    for name in ours.specs:
        # PEFT multiplies by the scale in the same order: not one bit differs.
        assert torch.equal(ours.read(name), theirs[name]), name


@pytest.mark.parametrize("format", FORMATS.names())
def test_an_adapter_that_is_kept_loads_in_peft_onto_the_converted_base(
    format: str, pristine: Path, tmp_path: Path
) -> None:
    adapter = _adapter(pristine, tmp_path / "adapter", ADAPTERS["ranks and alphas by name"])
    run_command("convert", pristine, tmp_path / "there", "--to", format, "--adapter", adapter, "--keep-adapter")
    run_command("convert", tmp_path / "there", tmp_path / "back", "--to", "hf")
    ours = peft.PeftModel.from_pretrained(_model(tmp_path / "back"), tmp_path / "back" / "adapter")
    theirs = peft.PeftModel.from_pretrained(_model(pristine), adapter)
    with torch.no_grad():
        expected = theirs(TOKENS).logits
        assert torch.equal(ours(TOKENS).logits, expected)
        assert not torch.allclose(_model(pristine)(TOKENS).logits, expected, atol=0.1)
