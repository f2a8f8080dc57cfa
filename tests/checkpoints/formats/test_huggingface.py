"""The Hugging Face layout: sharding, faults of an index, loading and saving a model."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from dagrpo.checkpoints.file_plan import write_all
from dagrpo.checkpoints.folder import require_chat_template
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors, planned_files
from dagrpo.checkpoints.manifest import tensor_digest, verify
from dagrpo.checkpoints.safetensors_file import plan_shards
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.store import load_model
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.checkpoints.weight_map import INDEX, WEIGHTS
from dagrpo.utils.distributed import single_process
from dagrpo.utils.manifest import MANIFEST

LIMIT = 4096


@pytest.fixture
def sharded(model_folder: Path) -> Path:
    """The model in several files with an index, without a manifest."""
    tensors = HuggingFaceTensors(model_folder)
    (model_folder / MANIFEST).unlink()
    write_all(model_folder, planned_files(tensors, LIMIT))
    (model_folder / WEIGHTS).unlink()
    return model_folder


def test_shards_are_filled_in_name_order_up_to_the_limit() -> None:
    state = {name: torch.zeros(size, dtype=torch.uint8) for name, size in {"a": 3, "b": 4, "c": 9, "d": 1}.items()}
    assert [list(shard.specs) for shard in plan_shards(StateTensors(state), 7)] == [["a", "b"], ["c"], ["d"]]


def test_sharding_does_not_change_the_digest(sharded: Path, pristine: Path) -> None:
    files = list(sharded.glob("*.safetensors"))
    largest = max(spec.bytes for spec in HuggingFaceTensors(sharded).specs.values())
    assert len(files) > 3
    assert all(file.stat().st_size <= max(LIMIT, largest) + 2048 for file in files)
    assert tensor_digest(HuggingFaceTensors(sharded)) == verify(pristine).tensors.digest


def test_transformers_reads_the_shards(sharded: Path, pristine: Path) -> None:
    ids = torch.tensor([[1, 40, 50, 2]])
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (sharded, pristine)]
    first, second = (model(ids).logits for model in models)
    assert torch.equal(first, second)


def test_a_tensor_that_the_index_promises_and_the_shard_lacks_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.extra"] = sorted(sharded.glob("*.safetensors"))[0].name
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"lacks the tensor model\.extra that .*index\.json promises"):
        HuggingFaceTensors(sharded)


def test_a_folder_with_pickled_weights_only_is_refused(model_folder: Path) -> None:
    (model_folder / WEIGHTS).rename(model_folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"has no weights \(model\.safetensors .* choose a model in safetensors"):
        HuggingFaceTensors(model_folder)


def test_a_folder_without_a_chat_template_is_refused_also_in_the_tokenizer_config(model_folder: Path) -> None:
    (model_folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="has no chat template"):
        require_chat_template(model_folder)
    config = json.loads((model_folder / "tokenizer_config.json").read_text())
    (model_folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{{ messages }}"}))
    require_chat_template(model_folder)


def test_training_a_loaded_model_leaves_its_file_alone(pristine: Path) -> None:
    model, _ = load_model(pristine, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    verify(pristine)


def test_a_model_saved_in_another_type_says_so_in_its_config(pristine: Path, tmp_path: Path) -> None:
    model, _ = load_model(pristine, torch.bfloat16)
    save_sharded(model, pristine, tmp_path / "saved", single_process())
    assert set(verify(tmp_path / "saved").tensors.dtypes) == {"bfloat16"}
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved").dtype is torch.bfloat16
