"""Reward hacking: a component that rises while accuracy falls is found, and nothing else."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dagrpo.rewards.hacking import hacked

STEPS = 100


def course(seed: int, *points: tuple[float, float], noise: float = 0.03) -> NDArray[np.float64]:
    steps = np.arange(STEPS)
    line = np.interp(steps, [at for at, _ in points], [value for _, value in points])
    return line + np.random.default_rng(seed).normal(0, noise, STEPS)


ACCURACY = course(1, (0, 0.2), (40, 0.6), (99, 0.35))


def test_a_component_that_rises_while_accuracy_falls_is_named_with_its_numbers() -> None:
    metrics = {
        "reward/accuracy": ACCURACY,
        "reward/component/accuracy": ACCURACY,
        "reward/component/format": course(2, (0, 0.3), (99, 1.0)),
        "reward/component/overlong": course(3, (0, -0.2), (99, -0.2)),
        "rollout/length_mean": course(4, (0, 10.0), (99, 100.0)),
    }
    (found,) = hacked(metrics)
    assert found.component == "format"
    assert 40 <= found.best_step <= 70
    assert found.steps == STEPS
    assert found.accuracy == pytest.approx((0.58, 0.39), abs=0.03)
    assert found.value == pytest.approx((0.61, 0.93), abs=0.05)
    assert "the component format rose from 0." in str(found)


def test_components_that_rise_with_accuracy_or_fall_with_it_are_no_sign() -> None:
    rising = course(1, (0, 0.2), (99, 0.8))
    assert hacked({"reward/accuracy": rising, "reward/component/format": course(2, (0, 0.0), (99, 1.0))}) == []
    assert hacked({"reward/accuracy": ACCURACY, "reward/component/format": course(2, (0, 1.0), (99, 0.0))}) == []


def test_a_collapse_of_accuracy_is_named_where_no_component_rises() -> None:
    (found,) = hacked({"reward/accuracy": course(1, (0, 0.4), (20, 0.6), (99, 0.1)), "policy/entropy": ACCURACY})
    assert str(found).startswith("accuracy fell from 55.9% to 15.8% between step 35 and step 100: ")
    assert "training diverges. Lower training.learning_rate" in str(found)
    halved = course(1, (0, 0.6), (99, 0.35))
    assert hacked({"reward/accuracy": halved}) == []


def test_noise_alone_is_no_sign() -> None:
    for seed in range(200):
        flat = {"reward/accuracy": course(seed, (0, 0.5), (99, 0.5), noise=0.1)}
        assert hacked(flat | {"reward/component/format": course(seed + 1000, (0, 0.0), (99, 1.0), noise=0.1)}) == []
