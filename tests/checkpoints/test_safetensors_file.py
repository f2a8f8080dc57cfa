"""Our safetensors files against those of the safetensors package."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrpo.checkpoints.safetensors_file import DTYPES, SafetensorsFile, write_safetensors
from dagrpo.checkpoints.tensors import StateTensors, raw_bytes
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
