"""The items of a `.distcp` file: the bytes of torch.save, and read again whatever stands beside the values."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.serialization import set_crc32_options

from dagrpo.checkpoints.file_plan import write_all
from dagrpo.core.errors import UserError
from dagrpo_megatron.distcp_reader import DistcpReader
from dagrpo_megatron.distcp_writer import DistcpPlan
from dagrpo_megatron.layout import Piece, Sizes
from dagrpo_megatron.pickles import read_metadata

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


def _write(folder: Path, tensors: dict[str, torch.Tensor], max_file_bytes: int = 1 << 30) -> None:
    plan = DistcpPlan(folder.name, max_file_bytes)
    for key, tensor in tensors.items():
        shape = tuple(tensor.shape)
        nowhere = tuple(0 for _ in shape)
        piece = Piece(
            key=key,
            also_known_as=(),
            layer=None,
            size=shape,
            offsets=nowhere,
            sizes=shape,
            names=(key,),
            shapes=(shape,),
            groups=0,
        )
        plan.add(piece, tensor.dtype, tensor.clone)
    write_all(folder.parent, plan.files())


def _saved(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    set_crc32_options(False)
    torch.save(tensor, file)
    set_crc32_options(True)
    return file.getvalue()


@pytest.mark.parametrize("shape", [(1,), (3,), (300, 7), (1, 1, 64, 3), (2, 1, 1, 1, 5)])
@pytest.mark.parametrize("dtype", TYPES)
def test_an_item_has_the_bytes_of_torch_save(dtype: torch.dtype, shape: Sizes, tmp_path: Path) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    _write(tmp_path / "x", {"w": tensor})
    ((_, place),) = read_metadata(tmp_path / "x" / ".metadata")["w"].chunks.values()
    content = (tmp_path / "x" / place.file).read_bytes()
    assert content[place.offset : place.offset + place.length] == _saved(tensor)
    assert torch.equal(torch.load(io.BytesIO(content[place.offset :])), tensor)


def test_items_of_equal_length_are_told_apart(tmp_path: Path) -> None:
    """Shapes of one length, one shape of other types, and one shape and type with other values."""
    tensors = {
        "a": torch.rand(2, 3),
        "b": torch.rand(3, 2),
        "c": torch.rand(2, 3),
        "d": torch.randint(0, 9, (2, 3), dtype=torch.int32),
        "e": torch.rand(2, 3),
    }
    _write(tmp_path / "x", tensors)
    reader = DistcpReader(tmp_path / "x")
    for key in (*tensors, *reversed(tensors)):
        shape = tuple(tensors[key].shape)
        assert torch.equal(reader.read(key, (0, 0), shape), tensors[key])


def test_an_item_that_is_not_the_one_before_it_is_checked_like_the_first(tmp_path: Path) -> None:
    _write(tmp_path / "x", {"a": torch.rand(2, 3), "b": torch.rand(2, 3)})
    reader = DistcpReader(tmp_path / "x")
    reader.read("a", (0, 0), (2, 3))
    ((start, (extent, place)),) = reader._stored["b"].chunks.items()
    path = tmp_path / "x" / place.file
    content = bytearray(path.read_bytes())
    header = content.index(b"FloatStorage", place.offset)
    content[header : header + 12] = b"QuoteStorage"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is a pickle that is not read \(it names torch\.QuoteStorage\)"):
        DistcpReader(tmp_path / "x").read("b", (0, 0), (2, 3))
    reader._stored["b"].chunks[start] = extent, replace(place, length=place.length - 1)
    with pytest.raises(ValueError, match="is damaged"):
        reader.read("b", (0, 0), (2, 3))


def test_a_file_ends_before_the_tensor_that_would_not_fit(tmp_path: Path) -> None:
    _write(tmp_path / "x", {name: torch.rand(1000) for name in "abcde"}, max_file_bytes=12_000)
    files = sorted(path.name for path in (tmp_path / "x").glob("*.distcp"))
    assert files == ["__0_0.distcp", "__0_1.distcp", "__0_2.distcp"]
    assert all((tmp_path / "x" / name).stat().st_size <= 12_000 for name in files)


def _described(folder: Path, start: Sizes, extent: Sizes, **place: object) -> DistcpReader:
    """A reader of a tensor [2, 3] whose one chunk is described so."""
    _write(folder, {"w": torch.rand(2, 3)})
    reader = DistcpReader(folder)
    ((_, (_, stored)),) = reader._stored["w"].chunks.items()
    reader._stored["w"].chunks.clear()
    reader._stored["w"].chunks[start] = extent, replace(stored, **place)  # type: ignore[arg-type]
    return reader


@pytest.mark.parametrize(
    ("start", "extent", "place"),
    [
        ((0, 0), (2, 4), {}),
        ((0, 0), (1 << 40, 1 << 40), {}),
        ((0, 0), (-2, -3), {}),
        ((0, 0), (0, 0), {}),
        ((-1, 0), (4, 3), {}),
        ((1 << 62, 0), (2, 3), {}),
        ((0,), (2, 3), {}),
        ((0, 0), (6,), {}),
        ((), (), {}),
        ((0, 0), (2, 3), {"offset": -1}),
        ((0, 0), (2, 3), {"length": -1}),
        ((0, 0), (2, 3), {"offset": 1 << 70}),
        ((0, 0), (2, 3), {"length": 1 << 70}),
        ((0, 0), (2, 3), {"length": 0}),
        ((0, 0), (2, 3), {"file": "../x"}),
        ((0, 0), (2, 3), {"file": "n\0ul"}),
        ((0, 0), (2, 3), {"file": ".metadata"}),
    ],
)
def test_a_hostile_description_of_a_chunk_is_one_sentence(
    start: Sizes, extent: Sizes, place: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        _described(tmp_path / "x", start, extent, **place).read("w", (0, 0), (2, 3))
    assert len(str(refused.value)) < 500
