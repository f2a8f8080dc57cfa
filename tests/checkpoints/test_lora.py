"""Adapters merged with the right scale, or carried along byte for byte; as PEFT itself makes, saves, merges and loads them."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
from tests.checkpoints.conftest import run_command
from transformers import AutoModelForCausalLM, PreTrainedModel

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.lora import merged, with_adapter_beside
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_checkpoint, open_tensors
from dagrpo.core.errors import UserError

LARGE = 1 << 30
NO_RANKS: list[Any] = [0, -1, None, "4", True, [], 1e300]
QUERY, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "use_dora": False}


def _adapter(folder: Path, state: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    """An adapter of rank 4 for two of the tiny model's 16 x 16 and 16 x 32 matrices."""
    folder.mkdir()
    torch.manual_seed(1)
    default = {
        **{f"base_model.model.{QUERY}.lora_{which}.weight": torch.randn(*shape) for which, shape in _shapes(16)},
        **{f"base_model.model.{DOWN}.lora_{which}.weight": torch.randn(*shape) for which, shape in _shapes(32)},
    }
    safetensors.torch.save_file(state or default, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return folder


def _shapes(columns: int) -> list[tuple[str, tuple[int, int]]]:
    return [("A", (4, columns)), ("B", (16, 4))]


def _product(folder: Path, module: str) -> torch.Tensor:
    state = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    up, down = (state[f"base_model.model.{module}.lora_{which}.weight"] for which in "BA")
    return torch.as_tensor(up @ down)


def test_a_merge_into_bfloat16_is_rounded_once(pristine: Path, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter")
    source = open_checkpoint(pristine)
    state = {name: source.tensors.read(name).bfloat16() for name in source.tensors.specs}
    (tmp_path / "half").mkdir()
    safetensors.torch.save_file(state, tmp_path / "half" / "model.safetensors")
    (tmp_path / "half" / "config.json").write_bytes((pristine / "config.json").read_bytes())
    result = merged(open_checkpoint(tmp_path / "half"), adapter).tensors.read(f"{QUERY}.weight")
    exact = state[f"{QUERY}.weight"].double() + 2.0 * _product(adapter, QUERY).double()
    assert torch.equal(result, exact.float().bfloat16())


@pytest.mark.parametrize("format", FORMATS.names())
def test_an_adapter_that_is_kept_apart_goes_along_through_every_format(
    format: str, pristine: Path, tmp_path: Path
) -> None:
    adapter = _adapter(tmp_path / "adapter")
    apart = write_as(format, with_adapter_beside(open_checkpoint(pristine), adapter), tmp_path / "apart", LARGE)
    assert apart.tensors == verify(pristine).tensors
    write_as("huggingface", open_checkpoint(tmp_path / "apart"), tmp_path / "back", LARGE)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "back" / "adapter" / name).read_bytes() == (adapter / name).read_bytes()
    # Merging it later is merging it at once, and the result carries no adapter to merge twice.
    later = merged(open_checkpoint(tmp_path / "back"), tmp_path / "back" / "adapter")
    write_as("huggingface", later, tmp_path / "later", LARGE)
    write_as("huggingface", merged(open_checkpoint(pristine), adapter), tmp_path / "at once", LARGE)
    assert verify(tmp_path / "later") == verify(tmp_path / "at once")
    assert not (tmp_path / "later" / "adapter").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "has the peft_type 'IA3': only LORA"),
        ({"use_dora": True}, "sets use_dora to True"),
        ({"modules_to_save": ["lm_head"]}, r"sets modules_to_save to \['lm_head'\]"),
        ({"bias": "all"}, "sets bias to 'all'"),
        ({"lora_bias": True}, "sets lora_bias to True"),
        ({"init_lora_weights": "pissa"}, "sets init_lora_weights to 'pissa'"),
        *(({"r": value}, "sets r to .*, which is not a number between 0 and") for value in NO_RANKS),
        ({"lora_alpha": float("nan")}, "sets lora_alpha to nan, which is not a number between 0 and"),
        ({"rank_pattern": [4]}, r"sets rank_pattern to \[4\], which is not an object of names and numbers"),
        (
            {"alpha_pattern": {"q_proj": None}},
            "sets alpha_pattern 'q_proj' to None, which is not a number between 0 and",
        ),
        ({"rank_pattern": {"(q_proj": 4}}, r"has the pattern '\(q_proj', which cannot be matched"),
        ({"rank_pattern": {r"(.|..|...)*(.|..)*(.|..)*[^\w.]": 4}}, r"has the pattern .*, which cannot be matched"),
        ({"r": 8}, r"_proj' has rank 4, but adapter_config\.json says 8"),
    ],
)
def test_an_adapter_that_does_more_or_contradicts_itself_is_refused(
    config: dict[str, Any], message: str, pristine: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        merged(open_checkpoint(pristine), _adapter(tmp_path / "adapter", **config))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({f"{QUERY}.lora_A.weight": (4, 16)}, r"lacks 'base_model\.model\.\S+q_proj\.lora_B\.weight"),
        ({"lm_head.weight": (4, 16)}, r"holds the unknown tensor 'base_model\.model\.lm_head\.weight"),
        (
            {"x.lora_A.weight": (4, 16), "x.lora_B.weight": (16, 4)},
            r"changes 'x\.weight', which the model does not have",
        ),
        (
            {f"{QUERY}.lora_A.weight": (4, 8), f"{QUERY}.lora_B.weight": (16, 4)},
            "as 16 x 4 by 4 x 8, but the model has it as 16 x 16",
        ),
    ],
)
def test_an_adapter_of_another_model_is_named(
    state: dict[str, tuple[int, int]], message: str, pristine: Path, tmp_path: Path
) -> None:
    tensors = {f"base_model.model.{name}": torch.ones(*shape) for name, shape in state.items()}
    with pytest.raises(ValueError, match=message):
        merged(open_checkpoint(pristine), _adapter(tmp_path / "adapter", tensors))


@pytest.mark.parametrize("content", ["[]", "null", "3", "no json", "[" * 9000])
def test_a_config_that_is_no_object_is_refused(pristine: Path, tmp_path: Path, content: str) -> None:
    adapter = _adapter(tmp_path / "adapter")
    (adapter / "adapter_config.json").write_text(content)
    with pytest.raises(UserError, match=r"adapter_config\.json is not valid JSON"):
        merged(open_checkpoint(pristine), adapter)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapters_file_that_is_a_link_out_of_its_folder_is_refused(
    pristine: Path, tmp_path: Path, name: str
) -> None:
    adapter = _adapter(tmp_path / "adapter")
    (adapter / name).rename(tmp_path / name)
    (adapter / name).symlink_to(tmp_path / name)
    with pytest.raises(UserError, match="is a link out of its folder"):
        merged(open_checkpoint(pristine), adapter)


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


def _adapter_of_peft(pristine: Path, folder: Path, settings: dict[str, Any]) -> Path:
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
    adapter = _adapter_of_peft(pristine, tmp_path / "adapter", settings)
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
    adapter = _adapter_of_peft(pristine, tmp_path / "adapter", ADAPTERS["ranks and alphas by name"])
    run_command("convert", pristine, tmp_path / "there", "--to", format, "--adapter", adapter, "--keep-adapter")
    run_command("convert", tmp_path / "there", tmp_path / "back", "--to", "hf")
    ours = peft.PeftModel.from_pretrained(_model(tmp_path / "back"), tmp_path / "back" / "adapter")
    theirs = peft.PeftModel.from_pretrained(_model(pristine), adapter)
    with torch.no_grad():
        expected = theirs(TOKENS).logits
        assert torch.equal(ours(TOKENS).logits, expected)
        assert not torch.allclose(_model(pristine)(TOKENS).logits, expected, atol=0.1)
