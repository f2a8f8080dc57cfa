"""The trainer's format: exact both ways, readable by torch, written with the same bytes each time."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests.hostile import anything, refusal
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import PreTrainedConfig, Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export, write_as
from dagrpo.checkpoints.folder import auxiliary_files
from dagrpo.checkpoints.formats.dcp import DcpTensors
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import Manifest, tensor_digest, verify, write_manifest
from dagrpo.checkpoints.sharded import save_sharded
from dagrpo.checkpoints.source import open_checkpoint
from dagrpo.checkpoints.store import load_model
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.utils.distributed import single_process
from dagrpo.utils.manifest import MANIFEST

LARGE = 1 << 30
SMALL_MOE = Qwen3MoeConfig(
    vocab_size=260,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=32,
    moe_intermediate_size=8,
    num_experts=4,
    num_experts_per_tok=2,
)


@pytest.fixture
def converted(pristine: Path, tmp_path: Path) -> Path:
    write_as("dcp", open_checkpoint(pristine), tmp_path / "converted", LARGE)
    return tmp_path / "converted"


def _folder_of(config: PreTrainedConfig, dtype: torch.dtype, like: Path, folder: Path, limit: int) -> Manifest:
    """A random model of that config with the tokenizer of `like`."""
    torch.manual_seed(0)
    kind = {"qwen2": Qwen2ForCausalLM, "qwen3_moe": Qwen3MoeForCausalLM}[config.model_type]
    kind(config).to(dtype).save_pretrained(folder, max_shard_size=limit)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(like / name, folder / name)
    return write_manifest(folder, "huggingface", HuggingFaceTensors(folder))


def _assert_same_auxiliary_files(first: Path, second: Path) -> None:
    names = auxiliary_files(first)
    assert {"tokenizer.json", "chat_template.jinja", "config.json", "generation_config.json"} <= set(names)
    assert names == auxiliary_files(second)
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


@pytest.mark.parametrize("limit", [LARGE, 8192], ids=["one file", "shards"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_way_there_and_back_is_exact(
    tied: bool, dtype: torch.dtype, limit: int, pristine: Path, tmp_path: Path
) -> None:
    config = Qwen2Config.from_pretrained(pristine, tie_word_embeddings=tied)
    source = _folder_of(config, dtype, pristine, tmp_path / "source", limit)
    assert ("lm_head.weight" in HuggingFaceTensors(tmp_path / "source").specs) is not tied
    there = write_as("dcp", open_checkpoint(tmp_path / "source"), tmp_path / "there", LARGE)
    back = write_as("huggingface", open_checkpoint(tmp_path / "there"), tmp_path / "back", limit)
    assert there.format == "dcp"
    assert source.tensors == there.tensors == back.tensors
    _assert_same_auxiliary_files(tmp_path / "source", tmp_path / "there")
    _assert_same_auxiliary_files(tmp_path / "source", tmp_path / "back")
    assert len(list((tmp_path / "back").glob("*.safetensors"))) == 1 or limit < LARGE


def test_the_same_weights_give_the_same_bytes_and_logits(pristine: Path, converted: Path, tmp_path: Path) -> None:
    write_as("dcp", open_checkpoint(pristine), tmp_path / "again", LARGE)
    model, tokenizer = load_model(converted, torch.float32)
    original, _ = load_model(pristine, torch.float32)
    ids = torch.tensor([[1, 40, 50, 60, 2]])
    assert torch.equal(original(ids).logits, model(ids).logits)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tokenizer.decode(tokenizer.encode("1 + 2 = 3")) == "1 + 2 = 3"
    save_sharded(model, converted, tmp_path / "saved", single_process())
    manifests = {(folder / MANIFEST).read_bytes() for folder in (converted, tmp_path / "again", tmp_path / "saved")}
    assert len(manifests) == 1


def test_several_files_of_one_rank_are_read_by_torch_and_by_us(pristine: Path, tmp_path: Path) -> None:
    write_as("dcp", open_checkpoint(pristine), tmp_path / "shards", 8192)
    files = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    assert files == [f"shard-00001-model-{n:05d}-of-00004.safetensors" for n in range(1, 5)]
    expected = safetensors.torch.load_file(pristine / "model.safetensors")
    state = {name: torch.full_like(tensor, torch.nan) for name, tensor in expected.items()}
    load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path / "shards")), no_dist=True)
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert tensor_digest(DcpTensors(tmp_path / "shards")) == verify(pristine).tensors.digest
    model, _ = load_model(tmp_path / "shards", torch.float32)
    assert torch.equal(model.state_dict()["model.norm.weight"], expected["model.norm.weight"])


def test_the_file_is_the_one_that_torchs_own_writer_makes(pristine: Path, converted: Path, tmp_path: Path) -> None:
    state = safetensors.torch.load_file(pristine / "model.safetensors")
    writer = HuggingFaceStorageWriter(str(tmp_path / "torch"), save_distributed=True)
    save(state, storage_writer=writer, no_dist=True)
    (theirs,), (ours,) = ((tmp_path / "torch").iterdir(), converted.glob("*.safetensors"))
    assert theirs.name == ours.name
    with safe_open(theirs, "pt") as first, safe_open(ours, "pt") as second:
        assert _parsed(first.metadata()) == _parsed(second.metadata())
    assert tensor_digest(DcpTensors(tmp_path / "torch")) == verify(converted).tensors.digest


def _parsed(metadata: dict[str, str]) -> dict[str, object]:
    return metadata | {"DCP_SHARDING_INFO": json.loads(metadata["DCP_SHARDING_INFO"])}


def test_a_tensor_that_two_ranks_hold_is_put_together_unless_its_types_differ(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    _write_chunk(tmp_path, 1, whole[:3], [0, 0])
    _write_chunk(tmp_path, 2, whole[3:], [3, 0])
    assert torch.equal(DcpTensors(tmp_path).read("w"), whole)
    assert tensor_digest(DcpTensors(tmp_path)) == tensor_digest(StateTensors({"w": whole}))
    _write_chunk(tmp_path, 2, whole[3:].bfloat16(), [3, 0])
    with pytest.raises(UserError, match="in one type"):
        DcpTensors(tmp_path)


def _write_chunk(folder: Path, rank: int, chunk: torch.Tensor, offsets: list[int]) -> None:
    metadata = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": offsets}}), "format": "pt"}
    path = folder / f"shard-{rank:05d}-model-00001-of-00001.safetensors"
    safetensors.torch.save_file({"w": chunk.clone()}, path, metadata=metadata)


def test_experts_that_transformers_fuses_keep_their_names(pristine: Path, tmp_path: Path) -> None:
    source = _folder_of(SMALL_MOE, torch.float32, pristine, tmp_path / "source", LARGE)
    write_as("dcp", open_checkpoint(tmp_path / "source"), tmp_path / "there", LARGE)
    model, _ = load_model(tmp_path / "there", torch.float32)
    save_sharded(model, tmp_path / "there", tmp_path / "saved", single_process())
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in DcpTensors(tmp_path / "saved").specs
    assert verify(tmp_path / "saved").tensors == source.tensors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
            r"lacks the tensor model\.layers\.2\..* of Qwen2",
        ),
        ({"intermediate_size": 48}, r"holds the tensor .*mlp.* in another shape than Qwen2ForCausalLM"),
    ],
)
def test_a_tensor_that_the_config_contradicts_is_named(
    changes: dict[str, object], message: str, model_folder: Path
) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(json.dumps(config | changes))
    write_manifest(model_folder, "huggingface", HuggingFaceTensors(model_folder))
    with pytest.raises(UserError, match=message):
        load_model(model_folder, torch.float32)


def test_what_is_changed_in_another_format_or_without_a_tokenizer_is_refused(
    pristine: Path, converted: Path, model_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="is a dcp checkpoint where a huggingface one is needed"):
        convert(converted, tmp_path / "x", Checkpoint())
    with pytest.raises(ValueError, match="is a huggingface checkpoint where a dcp one is needed"):
        export(pristine, tmp_path / "x", Checkpoint())
    (converted / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json is truncated"):
        load_model(converted, torch.float32)
    (model_folder / "tokenizer.json").unlink()
    write_manifest(model_folder, "huggingface", HuggingFaceTensors(model_folder))
    with pytest.raises(ValueError, match="has no tokenizer"):
        convert(model_folder, tmp_path / "x", Checkpoint())
    assert not (tmp_path / "x").exists()


def _shards(folder: Path, *places: object) -> Path:
    """A folder with one file per place, each with two rows of the tensor `w`."""
    for number, place in enumerate(places):
        file = folder / f"shard-{number:05d}-model-00001-of-00001.safetensors"
        text = place if isinstance(place, str) else json.dumps({"w": {"saved_offsets": place}})
        safetensors.torch.save_file({"w": torch.ones(2, 3)}, file, {"DCP_SHARDING_INFO": text})
    return folder


@pytest.mark.parametrize(
    "places", [[[0, 0], [0, 0], [4, 0]], [[1, 0]], [[0]], ["[" * 9000]], ids=["overlap", "hole", "axes", "deep"]
)
def test_places_that_cannot_be_are_refused(tmp_path: Path, places: list[object]) -> None:
    with pytest.raises(UserError):
        DcpTensors(_shards(tmp_path, *places))


@settings(max_examples=40, deadline=None)
@given(st.lists(anything | st.lists(st.integers(-1, 4), min_size=2, max_size=2), min_size=1, max_size=3))
def test_any_places_give_a_whole_tensor_or_a_sentence(places: list[object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _shards(Path(folder), *places)
        said = refusal(lambda: DcpTensors(Path(folder)))
        assert len(said.replace(folder, "")) < 500
        assert said or bool((DcpTensors(Path(folder)).read("w") == 1).all())


def test_a_rank_file_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").mkdir()
    _shards(tmp_path / "elsewhere", [0, 0])
    (file,) = (tmp_path / "elsewhere").iterdir()
    (tmp_path / "folder" / file.name).symlink_to(file)
    with pytest.raises(UserError, match="is a link out of its folder"):
        DcpTensors(tmp_path / "folder")
