"""The Hugging Face layout: shards, faults of an index, loading and saving; and formats that come from other packages."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export
from dagrpo.checkpoints.file_plan import write_all
from dagrpo.checkpoints.folder import require_chat_template
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.formats.dcp import Dcp
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors, planned_files
from dagrpo.checkpoints.manifest import tensor_digest, verify
from dagrpo.checkpoints.safetensors_file import plan_shards
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.source import format_of
from dagrpo.checkpoints.store import load_model
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.checkpoints.weight_map import INDEX, WEIGHTS
from dagrpo.core import plugins
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


class Reversed(Dcp):
    """A format of somebody else: DCP under another name."""

    name = "reversed"

    def recognises(self, folder: Path) -> bool:
        return (folder / "reversed.txt").is_file()


FORMAT = Reversed()


def _install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """As if these were all the entry points of the environment."""
    monkeypatch.setattr(plugins, "_entry_points", lambda: points)


def test_names_of_formats_are_known_without_importing_torch() -> None:
    code = "import sys; from dagrpo.checkpoints.config import Checkpoint; Checkpoint(format='dcp'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_without_its_package_a_format_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch)
    with pytest.raises(ValidationError, match=r"'megatron', .* not installed.*pip install \./packages/dagrpo_megatron"):
        Checkpoint(format="megatron")


def test_an_import_path_is_not_taken_for_a_format() -> None:
    with pytest.raises(ValidationError, match="a checkpoint format that is not installed"):
        Checkpoint(format=f"{__name__}:FORMAT")


def test_a_format_of_another_package_is_written_read_and_recognised(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "a_lab_formats", sys.modules[__name__])
    _install(monkeypatch, EntryPoint("reversed", "a_lab_formats:FORMAT", "dagrpo.checkpoint_formats"))
    assert FORMATS.names() == ["dcp", "huggingface", "reversed"]
    params = Checkpoint(format="reversed")
    convert(pristine, tmp_path / "initial", params)
    assert verify(tmp_path / "initial").format == "reversed"
    export(tmp_path / "initial", tmp_path / "exported", params)
    assert (tmp_path / "exported" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    (tmp_path / "initial" / "reversed.txt").touch()
    (tmp_path / "initial" / MANIFEST).unlink()
    assert format_of(tmp_path / "initial") == "reversed"  # asked before dcp, which recognises these files too
