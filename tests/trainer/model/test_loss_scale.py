"""The scale of the loss in float16: GradScaler's course, gradients that would be 0 without it, and updates that are skipped."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer import runs
from tests.trainer.small_updates import BATCH, small_policy, small_update
from tests.trainer.updates import TRAINING, rollouts, update_of, weight_sum
from torch.amp.grad_scaler import GradScaler

from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.model import optimizer as trainer_optimizer
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.optimizer import FIRST_LOSS_SCALE, LossScale
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.update.policy_update import LOSS_SCALE
from dagrpo.trainer.update.stats import UpdateStats
from dagrpo.utils.distributed import World

HALF = {"dtype": "float16"}


@given(st.lists(st.booleans(), max_size=20))
def test_it_goes_as_that_of_torch(finite: list[bool]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_optimizer, "UPDATES_TO_DOUBLE", 3)
        ours, theirs = LossScale(), GradScaler("cpu", growth_interval=3)
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for is_finite in finite:
            weight.grad = theirs.scale(torch.ones(1) if is_finite else torch.tensor([math.inf]))
            theirs.step(optimizer)
            theirs.update()
            ours.adapt(is_finite=is_finite)
            assert ours.value == theirs.get_scale()


def test_what_is_saved_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_optimizer, "UPDATES_TO_DOUBLE", 3)
    scale = LossScale()
    for is_finite in (False, True, True):
        scale.adapt(is_finite=is_finite)
    resumed = LossScale(json.loads(json.dumps(scale.saved)))
    resumed.adapt(is_finite=True)
    assert (scale.value, resumed.value) == (FIRST_LOSS_SCALE / 2, FIRST_LOSS_SCALE)


def _half_policy() -> Policy:
    policy = small_policy()
    policy.dtype = torch.float16
    return policy


def _updated(policy: Policy, training: dict[str, Any], scale: float | None = None) -> tuple[Any, UpdateStats]:
    update = small_update(policy, 3, {}, training)
    if update.loss_scale is not None and scale is not None:
        update.loss_scale.value = scale
    return update, update.run(0, BATCH)


def test_gradients_are_those_of_float32_to_the_rounding_of_float16_and_not_scaled() -> None:
    exact, half = _updated(small_policy(), {})[0], _updated(_half_policy(), HALF)[0]
    for name, gradient in exact.gradient.items():
        torch.testing.assert_close(half.gradient[name], gradient, rtol=0.02, atol=2e-4)


def test_gradients_that_float16_cannot_hold_are_learned_from_with_a_scale_alone() -> None:
    """Advantages of 1e-7 make gradients below 6e-8, the smallest number of float16."""
    assert BATCH.advantages is not None
    small = replace(BATCH, advantages=1e-7 * BATCH.advantages)
    norms = []
    for scale in (1.0, FIRST_LOSS_SCALE):
        update = small_update(_half_policy(), 3, {}, HALF)
        assert update.loss_scale is not None
        update.loss_scale.value = scale
        norms.append(update.run(0, small).grad_norm)
    exact = small_update(small_policy(), 3, {}, {}).run(0, small).grad_norm
    assert norms[1] == pytest.approx(exact, rel=0.02)
    assert abs(norms[0] - exact) > 0.2 * exact


def test_an_update_that_overflows_is_skipped_and_the_scale_halves() -> None:
    policy = _half_policy()
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    update, stats = _updated(policy, HALF, 2.0**40)
    assert (stats.skipped, stats.overflowed, stats.loss_scale) == (1, 1, 2.0**39)
    assert math.isfinite(stats.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    while update.run(0, BATCH).skipped:
        pass
    assert 1 < update.loss_scale.value < 2.0**30
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_loss_that_is_no_number_is_not_explained_by_the_scale() -> None:
    wrong = small_update(_half_policy(), 3, {}, HALF)
    with torch.no_grad():
        next(wrong._policy.parameters())[3] = math.nan
    stats = wrong.run(0, BATCH)
    assert (stats.skipped, stats.overflowed, stats.loss_scale) == (1, 0, FIRST_LOSS_SCALE)


def _update_from_too_large_a_scale(world: World, initial: Path) -> list[dict[str, Any]]:
    policy, seen = load_policy(initial, world, dtype=torch.float16), []
    training = TRAINING.model_copy(update=HALF)
    saved = {LOSS_SCALE: {"value": 2.0**32, "finite_updates": 0}}
    update = update_of(policy, world, Budget(sequences=3), training=training, saved=saved)
    for _ in range(12):
        stats = update.run(0, rollouts(0))
        seen.append({"skipped": stats.skipped, "overflowed": stats.overflowed, "scale": stats.loss_scale})
        seen[-1] |= {"norm": stats.grad_norm, "sum": weight_sum(policy, world)}
    return seen


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [1, 2])
def test_every_process_skips_the_same_updates_and_has_the_same_scale(processes: int, inputs: tuple[Path, Path]) -> None:
    first, *others = runs.launch(processes, _update_from_too_large_a_scale, inputs[0])
    assert first[0]["skipped"] == first[0]["overflowed"] > 0
    assert first[-1]["skipped"] == 0
    assert first[-1]["sum"] != first[0]["sum"]
    assert all(other == first for other in others)
