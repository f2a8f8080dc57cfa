"""The commands as a person types them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from dagrpo.__main__ import app
from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.manifest import MANIFEST, read_manifest
from dagrpo.checkpoints.megatron import recipes
from dagrpo.params.checkpoint import Checkpoint


def _run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ValueError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_a_model_goes_to_megatron_and_back_by_hand(pristine: Path, tmp_path: Path) -> None:
    shown = _run("convert", pristine, tmp_path / "there", "--to", "megatron")
    assert "--rotary-base" in shown
    _run("convert", tmp_path / "there", tmp_path / "back", "--to", "hf")
    assert (tmp_path / "back" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    assert "26 tensors are equal, 0 differ" in _run("diff", pristine, tmp_path / "there")
    assert "is whole: " in _run("verify", tmp_path / "there")


def test_inspect_shows_the_whole_and_every_tensor(pristine: Path) -> None:
    lines = _run("inspect", pristine).splitlines()
    digest = read_manifest(pristine / MANIFEST).tensors.digest
    assert lines[:2] == ["format: huggingface", "parameters: 8,912 in 26 tensors, 35,648 bytes"]
    assert f"tensor digest: {digest}" in lines
    assert "model.norm.weight  float32  [16]" in lines


def test_diff_shows_names_shapes_types_digests_and_the_largest_difference(pristine: Path, tmp_path: Path) -> None:
    state = safetensors.torch.load_file(pristine / "model.safetensors")
    state["model.norm.weight"][3] += 0.25
    state["model.layers.0.input_layernorm.weight"] = state["model.layers.0.input_layernorm.weight"].bfloat16()
    state["model.layers.1.input_layernorm.weight"] = torch.ones(8)
    state["extra"] = state.pop("model.embed_tokens.weight")
    (tmp_path / "other").mkdir()
    safetensors.torch.save_file(state, tmp_path / "other" / "model.safetensors")
    shown = _run("diff", pristine, tmp_path / "other", code=1)
    assert f"extra: only in {tmp_path / 'other'}\n" in shown
    assert f"model.embed_tokens.weight: only in {pristine}\n" in shown
    assert "model.layers.1.input_layernorm.weight: shape [16] and [8]\n" in shown
    assert "model.layers.0.input_layernorm.weight: float32 and bfloat16, sha256 " in shown
    assert "largest difference 0.25\n" in shown
    assert "22 tensors are equal, 5 differ; the largest difference is 0.25." in shown


def test_a_difference_of_nan_is_not_hidden(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", torch.nan)):
        (tmp_path / name).mkdir()
        safetensors.torch.save_file({"w": torch.tensor([1.0, value, 5.0])}, tmp_path / name / "model.safetensors")
    (difference,) = compare(tmp_path / "a", tmp_path / "b").differences
    assert str(difference).endswith("largest difference nan")


def test_verify_notices_weights_that_are_not_those_of_the_manifest(model_folder: Path) -> None:
    content = json.loads((model_folder / MANIFEST).read_text())
    content["tensors"]["digest"] = "0" * 64
    (model_folder / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="holds other tensors than its manifest says"):
        _run("verify", model_folder)


def test_an_adapter_that_nobody_named_cannot_be_kept(pristine: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--keep-adapter is given without --adapter"):
        _run("convert", pristine, tmp_path / "x", "--to", "hf", "--keep-adapter")


def test_nothing_but_a_checkpoint_is_written_over(pristine: Path, model_folder: Path, tmp_path: Path) -> None:
    for destination in (model_folder, model_folder.parent):
        with pytest.raises(ValueError, match="which is read: give another folder to write"):
            _run("convert", model_folder, destination, "--to", "dcp")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "final.tex").touch()
    with pytest.raises(ValueError, match="thesis exists and is not a checkpoint of ours"):
        _run("convert", pristine, tmp_path / "thesis", "--to", "dcp")
    assert (tmp_path / "thesis" / "final.tex").exists()
    (tmp_path / "empty").mkdir()
    _run("convert", pristine, tmp_path / "empty", "--to", "dcp")
    _run("convert", pristine, tmp_path / "empty", "--to", "megatron")
    assert read_manifest(tmp_path / "empty" / MANIFEST).format == "megatron"


def _give_recipes(monkeypatch: pytest.MonkeyPatch, layers: int = 2, tokenizers: tuple[str, ...] = ("some",)) -> None:
    """One recipe for each of some published models, which have the sizes of the tiny model or as many layers."""
    large = recipes.recipe_named("qwen_2p5_32b_dapo")
    sizes = replace(large.model, layers=layers, hidden=16, ffn=32, heads=2, groups=1)
    models = [replace(sizes, tokenizer=tokenizer) for tokenizer in tokenizers]
    tiny = replace(large, tensor=1, length=64)
    monkeypatch.setattr(
        recipes, "RECIPES", [replace(tiny, name=f"tiny_{model.tokenizer}", model=model) for model in models]
    )


def test_a_model_of_a_recipes_sizes_gets_its_script_which_stays_with_megatrons_format(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_recipes(monkeypatch)
    shown = _run("convert", pristine, tmp_path / "there", "--to", "megatron")
    path = tmp_path / "there" / "train_with_megatron.sh"
    assert path.read_text() in shown
    assert os.access(path, os.X_OK)
    for argument in (tmp_path / "there" / "megatron_arguments.txt").read_text().splitlines():
        assert (f"  {argument}\n" in path.read_text()) is (argument != "--finetune")
    assert path.name in read_manifest(tmp_path / "there" / MANIFEST).files
    assert "is whole" in _run("verify", tmp_path / "there")
    _run("convert", tmp_path / "there", tmp_path / "back", "--to", "hf")
    assert (tmp_path / "back" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()


def test_the_convert_stage_writes_the_same_script(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_recipes(monkeypatch)
    _run("convert", pristine, tmp_path / "there", "--to", "megatron")
    convert(pristine, tmp_path / "initial", Checkpoint(format="megatron"))
    assert (tmp_path / "initial" / MANIFEST).read_bytes() == (tmp_path / "there" / MANIFEST).read_bytes()
    convert(pristine, tmp_path / "dcp", Checkpoint(format="dcp"))
    assert not (tmp_path / "dcp" / "train_with_megatron.sh").exists()


def test_a_recipe_is_written_for_another_model_only_when_it_is_named(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_recipes(monkeypatch, layers=3)
    _run("convert", pristine, tmp_path / "plain", "--to", "megatron")
    assert not (tmp_path / "plain" / "train_with_megatron.sh").exists()
    _run("convert", pristine, tmp_path / "named", "--to", "megatron", "--recipe", "tiny_some")
    assert "--num-layers 2\n" in (tmp_path / "named" / "train_with_megatron.sh").read_text()


def test_a_recipe_that_cannot_be_written_stops_the_conversion_before_it_begins(pristine: Path, tmp_path: Path) -> None:
    refused = {
        "qwen_2p5_32b_dapo": "tensor-parallel ranks, which do not divide",
        "nonsense": "There is no recipe 'nonsense'",
    }
    for recipe, message in refused.items():
        with pytest.raises(ValueError, match=message):
            _run("convert", pristine, tmp_path / "there", "--to", "megatron", "--recipe", recipe)
    with pytest.raises(ValueError, match="--recipe is given without --to megatron"):
        _run("convert", pristine, tmp_path / "there", "--to", "dcp", "--recipe", "qwen_2p5_32b_dapo")
    assert not (tmp_path / "there").exists()


def test_where_two_published_models_have_the_sizes_the_recipes_are_named(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_recipes(monkeypatch, tokenizers=("one", "other"))
    shown = _run("convert", pristine, tmp_path / "there", "--to", "megatron")
    assert "--recipe tiny_one or tiny_other" in " ".join(shown.split())
    assert not (tmp_path / "there" / "train_with_megatron.sh").exists()
