"""Megatron pads the vocabulary: rows too many are cut off, rows too few come from the base model or are an error."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packages.dagrpo_megatron.tests.families import FAMILIES

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.file_plan import write_all
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.source import open_checkpoint
from dagrpo_megatron.config import load_config
from dagrpo_megatron.distcp_writer import DistcpPlan
from dagrpo_megatron.layout import Layout, Piece, layout_of

LARGE = 1 << 30
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    FAMILIES["llama2"].save(tmp_path / "base")
    return tmp_path / "base"


def _with_rows(piece: Piece, tensor: torch.Tensor, rows: int) -> tuple[Piece, torch.Tensor]:
    """The piece as Megatron holds it with a vocabulary of so many rows; those added are NaN, as if uninitialised."""
    if not piece.is_vocabulary:
        return piece, tensor
    padded = torch.full((rows, tensor.shape[1]), torch.nan)
    padded[: len(tensor)] = tensor[:rows]
    sizes = (rows, tensor.shape[1])
    return replace(piece, size=sizes, sizes=sizes), padded


def _trained(base: Path, folder: Path, rows: int) -> Path:
    """What Megatron-LM saves of the base model after adding 1 to every weight, split in two as two ranks would."""
    layout, tensors = layout_of(load_config(base)), HuggingFaceTensors(base)
    plan = DistcpPlan(folder.name, LARGE)
    for piece in layout.pieces:
        joined = piece.join([tensors.read(name) + 1 for name in piece.names])
        _add_in_halves(plan, *_with_rows(piece, joined, rows))
    write_all(folder.parent, plan.files())
    return folder


def _add_in_halves(plan: DistcpPlan, piece: Piece, tensor: torch.Tensor) -> None:
    axis = len(piece.sizes) - 1
    half = piece.sizes[axis] // 2
    for begin, length in ((0, half), (half, piece.sizes[axis] - half)):
        offsets, sizes = list(piece.offsets), list(piece.sizes)
        offsets[axis] += begin
        sizes[axis] = length
        _add(plan, replace(piece, offsets=tuple(offsets), sizes=tuple(sizes)), tensor.narrow(axis, begin, length))


def _add(plan: DistcpPlan, piece: Piece, tensor: torch.Tensor) -> None:
    plan.add(piece, tensor.dtype, lambda: tensor)


def test_added_rows_are_cut_off(base: Path, tmp_path: Path) -> None:
    trained = _trained(base, tmp_path / "trained", 384)
    write_as("huggingface", open_checkpoint(trained, base), tmp_path / "back", LARGE)
    before, after = HuggingFaceTensors(base), HuggingFaceTensors(tmp_path / "back")
    assert before.specs == after.specs
    assert all(torch.equal(after.read(name), before.read(name) + 1) for name in before.specs)


def test_missing_rows_are_those_of_the_base(base: Path, tmp_path: Path) -> None:
    trained = _trained(base, tmp_path / "trained", 240)
    write_as("huggingface", open_checkpoint(trained, base), tmp_path / "back", LARGE)
    before, after = HuggingFaceTensors(base), HuggingFaceTensors(tmp_path / "back")
    for name in (EMBEDDING, OUTPUT):
        assert torch.equal(after.read(name)[:240], before.read(name)[:240] + 1)
        assert torch.equal(after.read(name)[240:], before.read(name)[240:])
    assert not any(after.read(name).isnan().any() for name in after.specs)


def test_missing_rows_without_a_base_are_an_error(base: Path, tmp_path: Path) -> None:
    trained = _trained(base, tmp_path / "trained", 240)
    (trained / "config.json").write_bytes((base / "config.json").read_bytes())
    with pytest.raises(
        ValueError, match=r"holds 240 of the 256 rows of embedding\.word_embeddings\.weight .*as the base"
    ):
        open_checkpoint(trained)


def test_a_base_of_another_type_gives_no_rows(base: Path, tmp_path: Path) -> None:
    trained = _trained(base, tmp_path / "trained", 240)
    FAMILIES["llama2"].save(tmp_path / "bfloat16", torch.bfloat16)
    with pytest.raises(
        ValueError, match=r"the base has no model\.embed_tokens\.weight of shape \[256, 64\] in torch\.float32"
    ):
        open_checkpoint(trained, tmp_path / "bfloat16")


def test_optimizer_and_random_states_beside_the_weights_are_left_alone(base: Path, tmp_path: Path) -> None:
    layout, tensors = layout_of(load_config(base)), HuggingFaceTensors(base)
    plan = DistcpPlan("trained", LARGE)
    for piece in layout.pieces:
        box = piece.join([tensors.read(name) for name in piece.names])
        _add(plan, piece, box)
        _add(plan, replace(piece, key=f"optimizer.state.exp_avg.{piece.key}"), box)
    write_all(tmp_path, plan.files())
    manifest = write_as("huggingface", open_checkpoint(tmp_path / "trained", base), tmp_path / "back", LARGE)
    assert manifest.tensors.count == len(tensors.specs)


def test_layers_that_are_stored_one_by_one_are_found(base: Path, tmp_path: Path) -> None:
    layout, tensors = layout_of(load_config(base)), HuggingFaceTensors(base)
    plan = DistcpPlan("trained", LARGE)
    for piece in layout.pieces:
        box = piece.join([tensors.read(name) for name in piece.names])
        alone = _alone(piece)
        _add(plan, alone, box.reshape(alone.sizes))
    write_all(tmp_path, plan.files())
    manifest = write_as("huggingface", open_checkpoint(tmp_path / "trained", base), tmp_path / "back", LARGE)
    assert manifest.tensors == open_checkpoint(base).summary()


def _alone(piece: Piece) -> Piece:
    """As Megatron names it where layers differ: `decoder.layers.N.`, without the axis of the layers."""
    if piece.layer is None:
        return piece
    key = piece.key.replace("decoder.layers.", f"decoder.layers.{piece.layer}.")
    return replace(piece, key=key, size=piece.size[1:], offsets=piece.offsets[1:], sizes=piece.sizes[1:])


def test_a_hole_in_a_tensor_is_an_error_and_never_uninitialised_rows(base: Path, tmp_path: Path) -> None:
    layout, tensors = layout_of(load_config(base)), HuggingFaceTensors(base)
    plan = DistcpPlan("trained", LARGE)
    for piece in layout.pieces:
        _add_but_the_last_rows(plan, layout, piece, piece.join([tensors.read(name) for name in piece.names]))
    write_all(tmp_path, plan.files())
    with pytest.raises(ValueError, match=r"lacks a part of embedding\.word_embeddings\.weight"):
        write_as("huggingface", open_checkpoint(tmp_path / "trained", base), tmp_path / "back", LARGE)
    assert not (tmp_path / "back").exists()


def _add_but_the_last_rows(plan: DistcpPlan, layout: Layout, piece: Piece, box: torch.Tensor) -> None:
    if piece.key == "embedding.word_embeddings.weight":
        rows = layout.shape.vocabulary - 8
        piece, box = replace(piece, sizes=(rows, layout.shape.hidden)), box[:rows]
    _add(plan, piece, box)
