"""Megatron pads the vocabulary: rows too many are cut off, rows too few come from the base model or are an error."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from packages.dagrpo_megatron.tests.families import FAMILIES
from torch import Tensor

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.file_plan import write_all
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.source import open_checkpoint
from dagrpo_megatron.config import load_config
from dagrpo_megatron.distcp_writer import DistcpPlan
from dagrpo_megatron.layout import Piece, layout_of

LARGE = 1 << 30


@pytest.fixture
def base(tmp_path: Path) -> Path:
    FAMILIES["llama2"].save(tmp_path / "base")
    return tmp_path / "base"


def _write(base: Path, folder: Path, stored: Callable[[Piece, Tensor], Iterator[tuple[Piece, Tensor]]]) -> Path:
    """Write what `stored` makes of each piece of the base model, as Megatron-LM does without config.json."""
    tensors, plan = HuggingFaceTensors(base), DistcpPlan(folder.name, LARGE)
    for piece in layout_of(load_config(base)).pieces:
        for held, tensor in stored(piece, piece.join([tensors.read(name) for name in piece.names])):
            plan.add(held, tensor.dtype, partial(torch.clone, tensor))
    write_all(folder.parent, plan.files())
    return folder


def _trained(base: Path, folder: Path, rows: int) -> Path:
    """Add 1 to every weight, give the vocabulary so many rows, NaN where they are added, and split each in two as two ranks would."""

    def stored(piece: Piece, tensor: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        if piece.is_vocabulary:
            padded = torch.full((rows, tensor.shape[1]), torch.nan)
            padded[: len(tensor)] = tensor[:rows]
            piece, tensor = replace(piece, size=tuple(padded.shape), sizes=tuple(padded.shape)), padded
        axis = len(piece.sizes) - 1
        half = piece.sizes[axis] // 2
        for begin, length in ((0, half), (half, piece.sizes[axis] - half)):
            offsets, sizes = list(piece.offsets), list(piece.sizes)
            offsets[axis] += begin
            sizes[axis] = length
            held = replace(piece, offsets=tuple(offsets), sizes=tuple(sizes))
            yield held, tensor.narrow(axis, begin, length) + 1

    return _write(base, folder, stored)


def _back(trained: Path, base: Path) -> tuple[HuggingFaceTensors, HuggingFaceTensors]:
    """Return the tensors of the base model, and those that come back."""
    write_as("huggingface", open_checkpoint(trained, base), trained.parent / "back", LARGE)
    return HuggingFaceTensors(base), HuggingFaceTensors(trained.parent / "back")


def test_added_rows_are_cut_off(base: Path, tmp_path: Path) -> None:
    before, after = _back(_trained(base, tmp_path / "trained", 384), base)
    assert before.specs == after.specs
    assert all(torch.equal(after.read(name), before.read(name) + 1) for name in before.specs)


def test_missing_rows_are_those_of_the_base(base: Path, tmp_path: Path) -> None:
    before, after = _back(_trained(base, tmp_path / "trained", 240), base)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(after.read(name)[:240], before.read(name)[:240] + 1)
        assert torch.equal(after.read(name)[240:], before.read(name)[240:])
    assert not any(after.read(name).isnan().any() for name in after.specs)


def test_missing_rows_without_a_base_or_with_one_of_another_type_are_an_error(base: Path, tmp_path: Path) -> None:
    trained = _trained(base, tmp_path / "trained", 240)
    FAMILIES["llama2"].save(tmp_path / "bfloat16", torch.bfloat16)
    with pytest.raises(ValueError, match=r"the base has no model\.embed_tokens\.weight of shape \[256, 64\]"):
        open_checkpoint(trained, tmp_path / "bfloat16")
    (trained / "config.json").write_bytes((base / "config.json").read_bytes())
    with pytest.raises(ValueError, match=r"holds 240 of the 256 rows of embedding\.word_embeddings\.weight .*the base"):
        open_checkpoint(trained)


def _beside_an_optimizer(piece: Piece, tensor: Tensor) -> Iterator[tuple[Piece, Tensor]]:
    yield piece, tensor
    yield replace(piece, key=f"optimizer.state.exp_avg.{piece.key}"), tensor


def _layer_by_layer(piece: Piece, tensor: Tensor) -> Iterator[tuple[Piece, Tensor]]:
    """As Megatron names them where layers differ: `decoder.layers.N.`, without the axis of the layers."""
    if piece.layer is not None:
        key = piece.key.replace("decoder.layers.", f"decoder.layers.{piece.layer}.")
        piece = replace(piece, key=key, size=piece.size[1:], offsets=piece.offsets[1:], sizes=piece.sizes[1:])
    yield piece, tensor.reshape(piece.sizes)


@pytest.mark.parametrize("stored", [_beside_an_optimizer, _layer_by_layer])
def test_weights_beside_optimizer_states_or_in_layers_of_their_number_are_found(
    stored: Callable[[Piece, Tensor], Iterator[tuple[Piece, Tensor]]], base: Path, tmp_path: Path
) -> None:
    trained = _write(base, tmp_path / "trained", stored)
    manifest = write_as("huggingface", open_checkpoint(trained, base), tmp_path / "back", LARGE)
    assert manifest.tensors == open_checkpoint(base).summary()


def test_a_hole_in_a_tensor_is_an_error_and_never_uninitialised_rows(base: Path, tmp_path: Path) -> None:
    def without_the_last_rows(piece: Piece, tensor: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        if piece.key == "embedding.word_embeddings.weight":
            tensor = tensor[:-8]
        yield replace(piece, sizes=tuple(tensor.shape)), tensor

    trained = _write(base, tmp_path / "trained", without_the_last_rows)
    with pytest.raises(ValueError, match=r"lacks a part of embedding\.word_embeddings\.weight"):
        write_as("huggingface", open_checkpoint(trained, base), tmp_path / "back", LARGE)
    assert not (tmp_path / "back").exists()
