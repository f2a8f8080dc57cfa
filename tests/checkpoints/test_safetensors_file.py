"""Safetensors files against those of the package, and an index of sharded weights: files of the folder or one sentence."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hostile import NOT_IN_THE_FOLDER, names, refusal

from dagrpo.checkpoints.safetensors_file import DTYPES, SafetensorsFile, write_safetensors
from dagrpo.checkpoints.tensors import StateTensors, raw_bytes
from dagrpo.checkpoints.weight_map import INDEX, files_of_weights, read_weight_map
from dagrpo.core.errors import UserError

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
SPECS = st.tuples(st.sampled_from(list(DTYPES.values())), st.lists(st.integers(0, 4), max_size=3))


def _filled(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    values = torch.arange(count, dtype=torch.uint8) % (2 if dtype is torch.bool else 113)
    return values.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


@settings(max_examples=60)
@given(specs=st.dictionaries(NAMES, SPECS, min_size=1, max_size=5))
def test_whatever_is_written_the_safetensors_package_reads(
    specs: dict[str, tuple[torch.dtype, list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = {name: _filled(dtype, shape) for name, (dtype, shape) in specs.items()}
    path = tmp_path_factory.mktemp("written") / "x.safetensors"
    write_safetensors(path, StateTensors(state), {"format": "pt"})
    read = safetensors.torch.load_file(path)
    ours = SafetensorsFile(path)
    assert set(read) == set(state) == ours.names
    for name, tensor in state.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert raw_bytes(read[name]) == raw_bytes(tensor) == raw_bytes(ours.read(name))
        assert ours.spec(name) == StateTensors(state).specs[name]


def test_the_bytes_are_those_of_the_safetensors_package(tmp_path: Path) -> None:
    state = {"model.b": torch.randn(3, 5), "model.a": torch.randn(7), "c": torch.randn(2).bfloat16()}
    write_safetensors(tmp_path / "ours", StateTensors(state), {"format": "pt"})
    safetensors.torch.save_file(state, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_several_metadata_keys_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    tensors = StateTensors({"w": torch.ones(2)})
    metadata = {str(key): "x" for key in range(8)}
    write_safetensors(tmp_path / "a", tensors, metadata)
    write_safetensors(tmp_path / "b", tensors, dict(reversed(metadata.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("content", [None, b"", b"\x10" + bytes(9)], ids=["missing", "empty", "cut off"])
def test_a_file_that_is_not_whole_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.safetensors is (missing|truncated or not a safetensors file)"):
        SafetensorsFile(path)


def _index(folder: Path, weight_map: object) -> Path:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder / INDEX


@pytest.mark.parametrize("name", [*NOT_IN_THE_FOLDER, "weights.bin", "weights"], ids=lambda name: repr(name)[:20])
def test_a_name_that_leads_elsewhere_is_refused_in_a_sentence(tmp_path: Path, name: object) -> None:
    index = _index(tmp_path, {"w": name})
    with pytest.raises(UserError, match="which is not a safetensors file of its folder: do not use") as refusal:
        read_weight_map(index)
    assert len(str(refusal.value).replace(str(tmp_path), "")) < 300
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "content", ["[]", "3", "null", "{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', "[" * 9000]
)
def test_what_is_no_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(UserError, match=INDEX):
        read_weight_map(tmp_path / INDEX)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=5), names, max_size=3) | names)
def test_any_index_gives_plain_names_or_a_sentence(weight_map: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = _index(Path(folder), weight_map)
        said = refusal(lambda: read_weight_map(index))
        assert len(said) < 500
        read = {} if said else read_weight_map(index)
        assert all(os.path.dirname(os.path.normpath(index.parent / name)) == folder for name in read.values())


def _shard(folder: Path, make: str, outside: Path) -> None:
    shard = folder / "a.safetensors"
    match make:
        case "pipe":
            os.mkfifo(shard)
        case "device":
            shard.symlink_to("/dev/zero")
        case "folder":
            shard.mkdir()
        case "absent":
            pass
        case "outside":
            (outside / "secret").write_bytes(b"s")
            shard.symlink_to(outside / "secret")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *((make, "is missing, but .* names it") for make in ("pipe", "device", "folder", "absent")),
        ("outside", "is a link out of its folder: put the file itself there"),
    ],
)
def test_a_shard_that_is_no_file_of_the_folder_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, make: str, said: str
) -> None:
    _shard(tmp_path, make, tmp_path_factory.mktemp("outside"))
    _index(tmp_path, {"w": "a.safetensors"})
    with pytest.raises(UserError, match=said):
        files_of_weights(tmp_path)
