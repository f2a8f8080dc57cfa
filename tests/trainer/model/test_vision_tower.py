"""Pictures in the trainer's forward pass, against transformers' own, in double."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import vision
from torch import Tensor

from dagrpo.models.pictures import PictureProcessor
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import Vision

CPU = torch.device("cpu")
FAMILIES = pytest.mark.parametrize("family", vision.FAMILIES)


def _logprobs(policy: Policy, sequences: TokenSequences, rows: range | None = None) -> Tensor:
    padded = sequences.padded(rows or range(len(sequences)), 0, CPU)
    # The whole of the softmax in double, which `token_logprobs` is not.
    hidden = policy._hidden(padded)[padded.rows, padded.columns]
    logits: Tensor = policy.model.get_output_embeddings()(hidden)
    return logits.log_softmax(-1).gather(1, padded.targets[:, None])[:, 0]


def _own(family: str, policy: Policy, folder: Path, row: int) -> Tensor:
    """The logprobs of one row by transformers alone."""
    processor, files = PictureProcessor.of(folder), vision.ROWS[row]
    ids = torch.tensor([vision.prompt_with(files, 5, 6 + row) + vision.COMPLETIONS[row]])
    given: dict[str, Any] = {}
    if files:
        pixels = [processor.pixels(file) for file in files]
        given = {
            "pixel_values": torch.cat([each.pixel_values for each in pixels]).double(),
            "image_grid_thw": torch.stack([each.grid for each in pixels]),
            "mm_token_type_ids": (ids == vision.IMAGE).int(),
        }
    length = len(vision.COMPLETIONS[row])
    table = policy.model(input_ids=ids, use_cache=False, **given).logits[0].log_softmax(-1)
    logprobs: Tensor = table[-length - 1 : -1].gather(1, ids[0, -length:, None])[:, 0]
    return logprobs


@FAMILIES
@pytest.mark.parametrize("kind", ["trained", "frozen"])
def test_a_padded_batch_has_the_logprobs_of_transformers_row_by_row(family: str, kind: Any, tmp_path: Path) -> None:
    policy = vision.policy_of(family, tmp_path, kind)
    ours = _logprobs(policy, vision.sequences())
    theirs = torch.cat([_own(family, policy, tmp_path, row) for row in range(5)])
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


@FAMILIES
def test_the_same_pictures_in_another_order_are_another_prompt(family: str, tmp_path: Path) -> None:
    policy = vision.policy_of(family, tmp_path)
    prompt = [*vision.prompt_with([vision.SMALL, vision.SMALL]), 5, 6]
    other = vision.picture(9, 16, 16)
    files = [(vision.SMALL, other), (other, vision.SMALL)]
    both = TokenSequences.of([prompt] * 2, [[False] * (len(prompt) - 1) + [True]] * 2, files)
    first, second = _logprobs(policy, both)
    assert abs(first - second) > 1e-3


def _gradients(policy: Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


@FAMILIES
@pytest.mark.parametrize("kind", ["trained", "frozen"])
def test_micro_batches_of_any_size_give_the_same_gradient(family: str, kind: Any, tmp_path: Path) -> None:
    policy, rows = vision.policy_of(family, tmp_path, kind), vision.sequences()
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for size in (5, 2, 1):
        policy.zero_grad()
        parts = [_logprobs(policy, rows, range(start, min(start + size, 5))) for start in range(0, 5, size)]
        loss = -torch.cat(parts).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        found.append((loss.detach(), _gradients(policy)))
    (loss, whole), *others = found
    for other, gradients in others:
        torch.testing.assert_close(other, loss, atol=1e-12, rtol=1e-12)
        assert gradients.keys() == whole.keys()
        for name, gradient in whole.items():
            # The towers of transformers rotate queries and keys in single precision, here those of several samples at once.
            atol = 1e-6 * float(gradient.abs().max()) if ".visual." in name else 1e-12
            torch.testing.assert_close(gradients[name], gradient, atol=atol, rtol=1e-12)
    towers = [name for name in whole if ".visual." in name]
    if kind == "frozen":
        assert towers == []
        assert "model.language_model.layers.0.mlp.up_proj.weight" in whole
    else:
        assert whole.keys() == dict(policy.model.named_parameters()).keys()
        assert all(whole[name].abs().max() > 0 for name in towers)


@FAMILIES
def test_a_frozen_tower_leaves_the_gradient_of_the_language_model_as_it_is(family: str, tmp_path: Path) -> None:
    gradients = []
    kinds: tuple[Vision, ...] = ("trained", "frozen")
    for kind in kinds:
        policy = vision.policy_of(family, tmp_path, kind)
        _logprobs(policy, vision.sequences()).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append({name: value for name, value in _gradients(policy).items() if ".visual." not in name})
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)


class _Counted:
    """How many pictures a tower has looked at."""

    def __init__(self, policy: Policy) -> None:
        self.pictures = 0
        policy.model.base_model.visual.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.pictures += len(named["grid_thw"])


@FAMILIES
def test_a_frozen_tower_looks_at_each_picture_once_per_step(family: str, tmp_path: Path) -> None:
    policy, rows = vision.policy_of(family, tmp_path, "frozen"), vision.sequences()
    counted = _Counted(policy)
    first = [_logprobs(policy, rows, range(row, row + 1)) for row in range(5)]
    again = [_logprobs(policy, rows, range(row, row + 1)) for row in range(5)]
    assert counted.pictures == 3
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    policy.forget_pictures()
    _logprobs(policy, rows)
    assert counted.pictures == 6


@pytest.mark.nightly
@FAMILIES
def test_a_trained_tower_looks_once_at_a_picture_that_several_samples_of_a_micro_batch_show(
    family: str, tmp_path: Path
) -> None:
    policy = vision.policy_of(family, tmp_path)
    counted = _Counted(policy)
    _logprobs(policy, vision.sequences())
    assert counted.pictures == 3


@FAMILIES
def test_a_batch_without_pictures_is_joined_by_a_blank_one_where_ranks_run_the_tower_together(
    family: str, tmp_path: Path
) -> None:
    """So that the ranks that do have pictures are not waited for in vain; nothing is learned from it."""
    alone, shared = vision.policy_of(family, tmp_path), vision.policy_of(family, tmp_path, shared=True)
    rows = vision.sequences([2])
    counted, logprobs = _Counted(shared), _logprobs(shared, rows)
    assert counted.pictures == 1
    torch.testing.assert_close(logprobs, _logprobs(alone, rows), atol=1e-12, rtol=0)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    towers = [value for name, value in _gradients(shared).items() if ".visual." in name]
    assert towers
    assert all(bool((value == 0).all()) for value in towers)
