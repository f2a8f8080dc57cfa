"""What is wrong with a checkpoint, or with its way to another format, is one sentence that names it."""

import io
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packages.dagrpo_megatron.tests.families import FAMILIES
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItemType

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.source import open_checkpoint
from dagrpo.utils.manifest import MANIFEST
from dagrpo_megatron.config import load_config
from dagrpo_megatron.layout import layout_of
from dagrpo_megatron.weights import MegatronTensors, weights_folder

LARGE = 1 << 30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    FAMILIES["qwen2"].save(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def there(source: Path, tmp_path: Path) -> Path:
    """In Megatron's format, without a manifest: as Megatron-LM itself leaves it."""
    write_as("megatron", open_checkpoint(source), tmp_path / "there", 100_000)
    (tmp_path / "there" / MANIFEST).unlink()
    return tmp_path / "there"


def _state(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = safetensors.torch.load_file(folder / "model.safetensors")
    return state


def _to_megatron(source: Path) -> None:
    write_as("megatron", open_checkpoint(source), source.parent / "results" / "new", LARGE)


def _set_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


LAYER = "model.layers.1"


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, {}, r"^GemmaForCausalLM has no table for Megatron \(known are Llama"),
        ({"architectures": None}, {}, r"config\.json names no architectures"),
        ({"intermediate_size": 128}, {}, r"mlp\.\w+\.weight has the shape \[\d+, \d+\], but .* has it as"),
        ({}, {f"{LAYER}.rotary_emb.inv_freq": torch.ones(4)}, r"layers\.1\.rotary_emb\.inv_freq has no place"),
        ({}, {f"{LAYER}.mlp.up_proj.weight": None}, r"layers\.1\.mlp\.up_proj\.weight of .* is missing"),
        ({}, {f"{LAYER}.self_attn.k_proj.weight": torch.bfloat16}, r"k_proj.* in torch\.bfloat16 and .*q_proj"),
        ({}, {f"{LAYER}.mlp.down_proj.weight": torch.bfloat16}, r"down_proj.* in torch\.bfloat16, but other tensors"),
    ],
)
def test_what_megatron_cannot_hold_is_named_before_anything_is_written(
    config: dict[str, Any], weights: dict[str, Any], message: str, source: Path
) -> None:
    _set_config(source, **config)
    state = _state(source)
    changed = {
        name: state[name].to(value) if isinstance(value, torch.dtype) else value for name, value in weights.items()
    }
    kept = {name: value for name, value in (state | changed).items() if value is not None}
    safetensors.torch.save_file(kept, source / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        _to_megatron(source)
    assert not (source.parent / "results").exists()


def test_types_that_differ_between_tensors_are_kept(source: Path, tmp_path: Path) -> None:
    state = {name: t if "norm" in name else t.bfloat16() for name, t in _state(source).items()}
    safetensors.torch.save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    write_as("megatron", open_checkpoint(source), tmp_path / "there", LARGE)
    manifest = write_as("huggingface", open_checkpoint(tmp_path / "there"), tmp_path / "back", LARGE)
    assert set(manifest.tensors.dtypes) == {"bfloat16", "float32"}


@pytest.mark.parametrize(
    ("damage", "fault"), [(os.unlink, "missing"), (lambda path: os.truncate(path, 100), "truncated")]
)
def test_a_distcp_file_that_is_not_whole_is_named(damage: Callable[[Path], None], fault: str, there: Path) -> None:
    damage(there / "release" / "__0_1.distcp")
    with pytest.raises(ValueError, match=rf"__0_1\.distcp is {fault}"):
        write_as("huggingface", open_checkpoint(there), there.parent / "back", LARGE)
    assert not (there.parent / "back").exists()


class _Foreign:
    """What a pickle may do when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch was_run",)


def test_a_metadata_file_that_runs_something_is_refused(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (there / "release" / ".metadata").write_bytes(pickle.dumps(_Foreign()))
    with pytest.raises(ValueError, match=r"\.metadata is a pickle that is not read \(it names posix\.system\): do"):
        open_checkpoint(there)
    assert not (tmp_path / "was_run").exists()


def test_a_tensor_that_runs_something_is_refused(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tensors = MegatronTensors(there, layout_of(load_config(there)))
    chunks = tensors._reader._stored["decoder.final_layernorm.weight"].chunks
    ((start, (extent, place)),) = chunks.items()
    torch.save([torch.ones(64), _Foreign()], tmp_path / "foreign")
    foreign = (tmp_path / "foreign").read_bytes()
    path = there / "release" / place.file
    chunks[start] = extent, replace(place, offset=path.stat().st_size, length=len(foreign))
    path.write_bytes(path.read_bytes() + foreign)
    with pytest.raises(ValueError, match=r"is a pickle that is not read \(it names posix\.system\)"):
        tensors.read("model.norm.weight")
    assert not (tmp_path / "was_run").exists()


class _Asked:
    """An attribute of a class, as Python 3.11.0 to 3.11.4 pickle a member of an enumeration."""

    def __init__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __reduce__(self) -> tuple[Any, tuple[type, str]]:
        return getattr, (self._owner, self._name)


class _ByName(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _Asked(type(value), value.name).__reduce__() if isinstance(value, Enum) else NotImplemented


def test_members_of_an_enumeration_may_be_named(there: Path, source: Path) -> None:
    path = there / "release" / ".metadata"
    with io.BytesIO() as file:
        _ByName(file, protocol=4).dump(pickle.loads(path.read_bytes()))  # noqa: S301 - written above
        assert b"TORCH_CONTIGUOUS_FORMAT" in file.getvalue()
        assert b"TORCH_CONTIGUOUS_FORMAT" not in path.read_bytes()  # equal bytes from every Python
        path.write_bytes(file.getvalue())
    assert compare(source, there).differences == ()


@pytest.mark.parametrize(
    ("owner", "name"), [(Metadata, "__init__"), (WriteItemType, "__subclasses__"), (WriteItemType, "mro")]
)
def test_no_other_attribute_may_be_asked_for(owner: type, name: str, there: Path) -> None:
    (there / "release" / ".metadata").write_bytes(pickle.dumps(_Asked(owner, name)))
    with pytest.raises(ValueError, match=r"is a pickle that is not read \(it asks for an attribute\)"):
        open_checkpoint(there)


def test_the_tracker_names_the_folder_of_the_weights_and_none_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has neither \.metadata nor latest_checkpointed_iteration\.txt"):
        weights_folder(tmp_path)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    for content, folder in (("release\n", "release"), ("300", "iter_0000300")):
        tracker.write_text(content)
        assert weights_folder(tmp_path) == tmp_path / folder
    tracker.write_text("../../secret")
    with pytest.raises(ValueError, match=r"holds '\.\./\.\./secret', not an iteration"):
        weights_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
            r"holds decoder\.layers\.\S+ in the shape \[2, .*config\.json asks for \[3, ",
        ),
        (
            {"architectures": ["LlamaForCausalLM"]},
            r"holds the tensor decoder\.layers\.self_attention\.linear_qkv\.bias, which",
        ),
        ({"tie_word_embeddings": False}, r"lacks the tensor output_layer\.weight, .*\(lm_head\.weight\)"),
    ],
)
def test_weights_of_another_model_than_the_config_says_are_named(
    config: dict[str, Any], message: str, there: Path
) -> None:
    _set_config(there, **config)
    with pytest.raises(ValueError, match=message):
        open_checkpoint(there)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_damage_anywhere_in_the_pickles_is_one_sentence(there: Path, data: st.DataObject) -> None:
    path = there / "release" / ".metadata"
    whole = path.read_bytes()
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4))
    damaged = bytearray(whole)
    for place, value in changes:
        damaged[place] = value
    path.write_bytes(damaged[: data.draw(st.integers(0, len(whole)))])
    complaint = _complaint_about(there)
    path.write_bytes(whole)
    assert complaint is None or (complaint.endswith(".") and "\n" not in complaint)


def _complaint_about(folder: Path) -> str | None:
    try:
        tensors = open_checkpoint(folder).tensors
        for name in tensors.specs:
            tensors.read(name)
    except ValueError as error:
        return str(error)
    return None
