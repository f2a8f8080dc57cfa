"""What can be converted from, and what of it goes along: images' parts, numbers of experts, weights one by one."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    MixtralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from dagrpo.checkpoints import gather
from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.experts import is_mixture_of_experts, number_of_experts
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.gather import GatheredWeights, is_in_checkpoint_form
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.modules import build_model, own_state, state_of
from dagrpo.checkpoints.source import format_of, open_checkpoint, open_tensors
from dagrpo.checkpoints.tensors import StateTensors, Tensors, first_difference
from dagrpo.core.errors import UserError
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.make import make_model
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.files import sha256_of
from dagrpo.utils.manifest import MANIFEST

LARGE = 1 << 30


def test_a_plain_download_is_converted_without_what_belongs_to_other_formats(
    pristine: Path, model_folder: Path, tmp_path: Path
) -> None:
    (model_folder / MANIFEST).unlink()
    (model_folder / "original").mkdir()
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "README.md", ".gitattributes", "original/x.json"):
        (model_folder / name).write_text("{}")
    (model_folder / "LICENSE").write_text("free")
    write_as("dcp", open_checkpoint(model_folder), tmp_path / "there", LARGE)
    back = write_as("huggingface", open_checkpoint(tmp_path / "there"), tmp_path / "back", LARGE)
    assert set(back.files) == {*verify(pristine).files, "LICENSE"}
    assert back.tensors == verify(pristine).tensors


@pytest.mark.parametrize(
    "name", ["vocab.txt", "extra.json", "chat_template.jinja", "spiece.model", "LICENSE", "config.json"]
)
def test_what_goes_along_from_a_folder_without_a_manifest_is_no_link_out_of_it(
    model_folder: Path, saved: Path, tmp_path: Path, name: str
) -> None:
    (model_folder / MANIFEST).unlink()
    outside = tmp_path / "outside"
    outside.write_bytes((model_folder / name).read_bytes() if (model_folder / name).exists() else b"private")
    (model_folder / name).unlink(missing_ok=True)
    (model_folder / name).symlink_to(outside)
    with pytest.raises(UserError, match=rf"/{name} is a link out of its folder: put the file itself there"):
        open_checkpoint(model_folder)
    with pytest.raises(UserError, match="is a link out of its folder"):  # nor as the base of other weights
        open_checkpoint(saved, model_folder)


def test_what_goes_along_from_the_hubs_own_cache_may_be_links_to_its_blobs(model_folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--lab--model"
    snapshot, blobs = repository / "snapshots/0123", repository / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(model_folder, blobs)
    for name in (*open_checkpoint(model_folder).auxiliary, "model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert open_checkpoint(snapshot).auxiliary == tuple(sorted(open_checkpoint(model_folder).auxiliary))
    (snapshot / "vocab.txt").symlink_to("config.json")
    assert "vocab.txt" in open_checkpoint(snapshot).auxiliary


@pytest.fixture
def saved(pristine: Path, tmp_path: Path) -> Path:
    """A folder as another trainer leaves it: weights alone."""
    (tmp_path / "saved").mkdir()
    shutil.copyfile(pristine / "model.safetensors", tmp_path / "saved" / "model.safetensors")
    return tmp_path / "saved"


@pytest.mark.parametrize("format", FORMATS.names())
def test_the_format_is_known_without_a_manifest(format: str, pristine: Path, tmp_path: Path) -> None:
    write_as(format, open_checkpoint(pristine), tmp_path / "x", LARGE)
    (tmp_path / "x" / MANIFEST).unlink()
    assert format_of(tmp_path / "x") == format
    assert open_checkpoint(tmp_path / "x").summary() == verify(pristine).tensors


def test_the_base_gives_config_and_tokenizer(pristine: Path, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"saved has no config\.json: give the model that training began with"):
        open_checkpoint(saved)
    write_as("huggingface", open_checkpoint(saved, pristine), tmp_path / "back", LARGE)
    assert (tmp_path / "back" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    # The base may itself be in another format.
    write_as("dcp", open_checkpoint(pristine), tmp_path / "dcp", LARGE)
    write_as("huggingface", open_checkpoint(saved, tmp_path / "dcp"), tmp_path / "again", LARGE)
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()


def test_a_folder_in_no_format_that_is_installed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"is not a checkpoint in any format that is installed \(dcp, huggingface"):
        format_of(tmp_path)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def vision_language(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in bfloat16."""
    family: Literal["qwen2_5_vl", "qwen3_vl"] = request.param
    folder = tmp_path_factory.mktemp("vision_language") / "model"
    shape = Fresh(
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=32,
        vision=Vision(family=family, depth=2, hidden_size=16, intermediate_size=32, num_heads=2),
    )
    make_model(folder, Model(fresh=shape, dtype="bfloat16", max_pixels=28 * 28 * 32))
    return folder


def test_both_parts_make_the_round_trip_byte_for_byte(vision_language: Path, tmp_path: Path) -> None:
    write_as("dcp", open_checkpoint(vision_language), tmp_path / "dcp", 1 << 30)
    write_as("huggingface", open_checkpoint(tmp_path / "dcp"), tmp_path / "back", 1 << 30)
    names = set(open_tensors(tmp_path / "back").specs)
    assert any("visual." in name for name in names)
    assert any("layers." in name and "visual" not in name for name in names)
    files = [path.name for path in vision_language.iterdir() if path.name != "manifest.json"]
    assert {"model.safetensors", "preprocessor_config.json", "tokenizer.json", "chat_template.jinja"} <= set(files)
    for name in files:
        assert sha256_of(tmp_path / "back" / name) == sha256_of(vision_language / name), name


def test_a_model_that_is_built_from_a_checkpoint_has_all_its_tensors(vision_language: Path) -> None:
    tensors = open_tensors(vision_language)
    state = {name: tensors.read(name) for name in tensors.specs}
    model = build_model(vision_language, state, torch.bfloat16)
    assert model.config.model_type == json.loads((vision_language / "config.json").read_text())["model_type"]
    again = state_of(model)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def _dense() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, intermediate_size=32, tie_word_embeddings=True))


def _experts() -> PreTrainedModel:
    more = {"head_dim": 8, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **more))


@pytest.mark.parametrize("model", [_dense(), _experts()], ids=["dense", "experts"])
def test_the_weights_are_those_that_would_be_saved(model: PreTrainedModel) -> None:
    expected = StateTensors({name: tensor.bfloat16() for name, tensor in state_of(model).items()})
    with GatheredWeights(model, torch.bfloat16, single_process()).reading() as tensors:
        assert first_difference(expected, tensors) is None
    assert is_in_checkpoint_form(model) is (model.config.model_type == "qwen2")


@pytest.mark.parametrize("model", [_dense(), _experts()], ids=["dense", "experts"])
def test_they_are_read_as_they_are_at_that_moment(model: PreTrainedModel) -> None:
    weights = GatheredWeights(model, torch.float32, single_process())
    for value in (1.0, 2.0):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        with weights.reading() as tensors:
            _assert_all(tensors, value)


def _assert_all(tensors: Tensors, value: float) -> None:
    assert tensors.specs
    assert all(bool((tensors.read(name) == value).all()) for name in tensors.specs)


def _joining(model: PreTrainedModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two norms of the model as one tensor of its checkpoint."""
    parts = [name for name in sorted(state) if name.endswith("layernorm.weight") and ".0." in name]
    rest = {name: tensor for name, tensor in state.items() if name not in parts}
    return rest | ({"norms": torch.cat([state[name] for name in parts])} if len(parts) == 2 else {})


def test_what_cannot_be_converted_one_by_one_is_converted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "in_checkpoint_form", _joining)
    model = _dense()
    expected = StateTensors(_joining(model, own_state(model)))
    with GatheredWeights(model, torch.float32, single_process()).reading() as tensors:
        assert first_difference(expected, tensors) is None


def test_what_cannot_be_gathered_one_by_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "in_checkpoint_form", _joining)
    with pytest.raises(ValueError, match=r"Qwen2ForCausalLM joins tensors of its checkpoint: set"):
        GatheredWeights(_dense(), torch.float32, World(rank=0, size=2, device=torch.device("cpu")))


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        (Qwen2Config(), 0),
        (Qwen3MoeConfig(num_experts=4), 4),
        (MixtralConfig(num_local_experts=8), 8),
        (DeepseekV3Config(n_routed_experts=16), 16),
    ],
)
def test_experts_are_counted_whatever_a_family_calls_them(config: Any, experts: int) -> None:
    assert number_of_experts(config) == experts
    assert is_mixture_of_experts(config) is (experts > 0)
