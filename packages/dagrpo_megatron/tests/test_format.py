"""The format as a person meets it: by the command, by the stage, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.checkpoints.conftest import run_command

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.manifest import read_manifest
from dagrpo.utils.manifest import MANIFEST
from dagrpo_megatron import recipes
from dagrpo_megatron.format import FORMAT

SIZES = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def _give_recipes(monkeypatch: pytest.MonkeyPatch, *models: str, layers: int = 2) -> None:
    """One recipe for each of some published models, which have the sizes of the tiny model or as many layers."""
    tiny = replace(recipes.RECIPES[0], tensor=1, length=64)
    monkeypatch.setattr(recipes, "CONFIGS", dict.fromkeys(models, SIZES | {"num_hidden_layers": layers}))
    monkeypatch.setattr(recipes, "RECIPES", [replace(tiny, name=f"tiny_{model}", model=model) for model in models])


def test_a_model_of_a_recipes_sizes_gets_its_script_which_stays_with_megatrons_format(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_recipes(monkeypatch, "some")
    run_command("convert", pristine, tmp_path / "there", "--to", "megatron")
    path = tmp_path / "there" / "train_with_megatron.sh"
    assert FORMAT.facts(tmp_path / "there")[-1] == ("Megatron-LM's GRPO", f"bash {path}")
    for argument in (tmp_path / "there" / "megatron_arguments.txt").read_text().splitlines():
        assert (f"  {argument}\n" in path.read_text()) is (argument != "--finetune")
    assert path.name in read_manifest(tmp_path / "there" / MANIFEST).files
    run_command("convert", tmp_path / "there", tmp_path / "back", "--to", "hf")
    assert (tmp_path / "back" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    convert(pristine, tmp_path / "stage", Checkpoint(format="megatron"))
    assert (tmp_path / "stage" / MANIFEST).read_bytes() == (tmp_path / "there" / MANIFEST).read_bytes()


def test_a_recipe_is_written_for_another_model_only_when_it_is_named(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_recipes(monkeypatch, "some", layers=3)
    run_command("convert", pristine, tmp_path / "plain", "--to", "megatron")
    assert not (tmp_path / "plain" / "train_with_megatron.sh").exists()
    run_command("convert", pristine, tmp_path / "named", "--to", "megatron", "--option", "recipe=tiny_some")
    assert "--num-layers 2\n" in (tmp_path / "named" / "train_with_megatron.sh").read_text()
    _give_recipes(monkeypatch, "one", "other")
    shown = run_command("convert", pristine, tmp_path / "of two", "--to", "megatron")
    assert "--option recipe=tiny_one or tiny_other" in " ".join(shown.split())
    assert not (tmp_path / "of two" / "train_with_megatron.sh").exists()


def test_a_recipe_that_cannot_be_written_stops_the_conversion_before_it_begins(pristine: Path, tmp_path: Path) -> None:
    for recipe, message in (
        ("qwen_2p5_32b_dapo", "which do not divide"),
        ("nonsense", "There is no recipe 'nonsense'"),
    ):
        with pytest.raises(ValueError, match=message):
            run_command("convert", pristine, tmp_path / "there", "--to", "megatron", "--option", f"recipe={recipe}")
    assert not (tmp_path / "there").exists()
