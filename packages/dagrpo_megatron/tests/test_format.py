"""The format as a person meets it: by the command, by the stage, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.manifest import read_manifest
from dagrpo.cli.application import app
from dagrpo.utils.manifest import MANIFEST
from dagrpo_megatron import recipes
from dagrpo_megatron.format import FORMAT


def _run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ValueError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


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
    _run("convert", pristine, tmp_path / "there", "--to", "megatron")
    path = tmp_path / "there" / "train_with_megatron.sh"
    assert FORMAT.facts(tmp_path / "there")[-1] == ("Megatron-LM's GRPO", f"bash {path}")
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
    _run("convert", pristine, tmp_path / "named", "--to", "megatron", "--option", "recipe=tiny_some")
    assert "--num-layers 2\n" in (tmp_path / "named" / "train_with_megatron.sh").read_text()


def test_a_recipe_that_cannot_be_written_stops_the_conversion_before_it_begins(pristine: Path, tmp_path: Path) -> None:
    refused = {
        "qwen_2p5_32b_dapo": "tensor-parallel ranks, which do not divide",
        "nonsense": "There is no recipe 'nonsense'",
    }
    for recipe, message in refused.items():
        with pytest.raises(ValueError, match=message):
            _run("convert", pristine, tmp_path / "there", "--to", "megatron", "--option", f"recipe={recipe}")
    with pytest.raises(ValueError, match="the format dcp has no option 'recipe'"):
        _run("convert", pristine, tmp_path / "there", "--to", "dcp", "--option", "recipe=qwen_2p5_32b_dapo")
    assert not (tmp_path / "there").exists()


def test_where_two_published_models_have_the_sizes_the_recipes_are_named(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_recipes(monkeypatch, tokenizers=("one", "other"))
    shown = _run("convert", pristine, tmp_path / "there", "--to", "megatron")
    assert "--option recipe=tiny_one or tiny_other" in " ".join(shown.split())
    assert not (tmp_path / "there" / "train_with_megatron.sh").exists()
