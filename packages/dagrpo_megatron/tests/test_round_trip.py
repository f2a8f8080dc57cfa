"""Every family to Megatron's format and back, byte for byte, by function, command and stage; what torch reads there."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packages.dagrpo_megatron.tests.families import FAMILIES
from tests.checkpoints.conftest import run_command
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, write_as
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import read_manifest, verify
from dagrpo.checkpoints.source import open_checkpoint
from dagrpo.utils.files import read_json
from dagrpo.utils.manifest import MANIFEST
from dagrpo_megatron import recipes
from dagrpo_megatron.families import FAMILIES as TABLES
from dagrpo_megatron.format import FORMAT

LARGE = 1 << 30


def _sha256s(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_way_to_megatron_and_back_is_byte_identical(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    FAMILIES[family].save(tmp_path / "source", dtype)
    there = write_as("megatron", open_checkpoint(tmp_path / "source"), tmp_path / "there", LARGE)
    back = write_as("huggingface", open_checkpoint(tmp_path / "there"), tmp_path / "back", LARGE)
    assert (there.format, there.tensors) == ("megatron", back.tensors)
    assert _sha256s(tmp_path / "back") == _sha256s(tmp_path / "source")
    assert verify(tmp_path / "there") == there


def test_every_table_is_tried_here() -> None:
    tried = {tiny.model for tiny in FAMILIES.values()}
    assert {name for table in TABLES for name in table.architectures} == tried


def test_a_source_of_many_shards_becomes_files_of_limited_size_and_one_checkpoint(tmp_path: Path) -> None:
    FAMILIES["qwen2"].save(tmp_path / "source", shard_bytes=40_000)
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 3
    write_as("megatron", open_checkpoint(tmp_path / "source"), tmp_path / "there", 100_000)
    files = list((tmp_path / "there" / "release").glob("*.distcp"))
    assert len(files) > 2
    # A file takes tensors up to the limit; headers and alignment come on top.
    assert all(path.stat().st_size < 130_000 for path in files)
    write_as("huggingface", open_checkpoint(tmp_path / "there"), tmp_path / "back", 40_000)
    assert verify(tmp_path / "back").tensors == verify(tmp_path / "there").tensors


@pytest.mark.nightly
def test_the_same_weights_give_the_same_bytes_in_another_process(pristine: Path, tmp_path: Path) -> None:
    write_as("megatron", open_checkpoint(pristine), tmp_path / "first", LARGE)
    arguments = ["convert", str(pristine), str(tmp_path / "second"), "--to", "megatron"]
    subprocess.run([sys.executable, "-m", "dagrpo", *arguments], check=True, capture_output=True)
    assert (tmp_path / "first" / MANIFEST).read_bytes() == (tmp_path / "second" / MANIFEST).read_bytes()
    assert _sha256s(tmp_path / "first") == _sha256s(tmp_path / "second")


def test_torch_reads_the_stacked_tensors_with_its_own_reader(tmp_path: Path) -> None:
    FAMILIES["qwen3_moe"].save(tmp_path / "source")
    write_as("megatron", open_checkpoint(tmp_path / "source"), tmp_path / "there", LARGE)
    key = "decoder.layers.mlp.experts.experts.linear_fc1.weight"
    norm = "decoder.layers.pre_mlp_layernorm.weight"
    state = {key: torch.full((2, 4, 64, 64), torch.nan), norm: torch.full((2, 64), torch.nan)}
    load(state, storage_reader=FileSystemReader(tmp_path / "there" / "release"), no_dist=True)
    source = HuggingFaceTensors(tmp_path / "source")
    for part, name in ((slice(0, 32), "gate_proj"), (slice(32, 64), "up_proj")):
        expected = source.read(f"model.layers.1.mlp.experts.3.{name}.weight")
        assert torch.equal(state[key][1, 3, part], expected)
    assert torch.equal(state[norm][1], source.read("model.layers.1.post_attention_layernorm.weight"))
    assert read_json(tmp_path / "there" / "release" / "metadata.json") == {
        "common_backend": "torch",
        "common_backend_version": 1,
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
    }


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
