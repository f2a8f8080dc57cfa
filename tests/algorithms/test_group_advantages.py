"""Advantages of whole trajectories beyond GRPO and RLOO, computed by hand."""

from typing import Any

import pytest
import torch
from tests.algorithms.batches import grouped

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of
from dagrpo.algorithms.reward_batch import RewardBatch


def _of(name: str, batch: RewardBatch, **keys: Any) -> list[float]:
    return advantages_of(batch, ADVANTAGES.get(name).config(name=name, **keys)).tolist()


def test_the_batchs_standard_deviation_divides_what_the_group_centred() -> None:
    """Mean 1/4, squares 9/16 and three times 1/16, divided by 3: the standard deviation is 1/2."""
    batch = grouped([1.0, 0.0, 0.0, 0.0], 2)
    assert _of("batch_std", batch) == pytest.approx([1.0, -1.0, 0.0, 0.0], abs=1e-5)
    # Centred they are 1/2, -1/2, 0, 0: variance 1/6.
    expected = 0.5 * 6**0.5
    assert _of("batch_std", batch, std_of="centred") == pytest.approx([expected, -expected, 0.0, 0.0], abs=1e-5)


def test_only_the_best_of_a_group_learns_from_pass_at_k() -> None:
    batch = grouped([0.25, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0], 4)  # two are best in the second group
    assert _of("grpo_passk", batch, normalize_by_std=False) == [0.0, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    # Deviations from 5/16 are -1, 11, -5 and -5 sixteenths, whose squares add up to 172: variance 172 / 256 / 3.
    assert _of("grpo_passk", batch)[1] == pytest.approx(0.75 / (172 / 256 / 3) ** 0.5, abs=1e-5)


def test_a_long_completion_weighs_more_in_the_baseline_of_opo() -> None:
    """(1 * 1 + 3 * 0) / 4 = 1/4; of the second group (2 * 1 + 1 * 0 + 5 * 1) / 8 = 7/8."""
    batch = grouped([1.0, 0.0, 1.0, 0.0, 1.0], 2, 3, lengths=[1, 3, 2, 1, 5])
    per_trajectory = [0.75, -0.25, 0.125, -0.875, 0.125]
    assert _of("opo", batch) == [
        each for each, tokens in zip(per_trajectory, [1, 3, 2, 1, 5], strict=True) for _ in range(tokens)
    ]


def test_gpg_makes_up_for_the_groups_without_a_gradient() -> None:
    """Half of the trajectories are in groups of equal rewards, so that the others count twice."""
    assert _of("gpg", grouped([1.0, 0.0, 1.0, 1.0], 2)) == [1.0, -1.0, 0.0, 0.0]
    assert _of("gpg", grouped([1.0, 0.0, 1.0, 0.0], 2)) == [0.5, -0.5, 0.5, -0.5]


def test_the_factor_of_gpg_has_a_limit() -> None:
    batch = grouped([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], 2)  # a third
    assert _of("gpg", batch) == [1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert _of("gpg", batch, max_alpha=9.0) == [1.5, -1.5, 0.0, 0.0, 0.0, 0.0]


def test_a_hard_prompt_weighs_one_over_its_pass_rate_in_maxrl() -> None:
    """Means 1/4, 1/2, 0 and -1/4; the last two teach nothing."""
    batch = grouped([1.0, 0, 0, 0, 1.0, 1.0, 0, 0, 0, 0, 0, 0, -1.0, 0, 0, 0], 4)
    assert _of("maxrl", batch) == [3.0, -1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0] + [0.0] * 8


def test_what_rounding_leaves_of_prices_that_cancel_is_no_reward_to_maxrl() -> None:
    left = 0.1 + 0.2 - 0.3
    assert 0 < left < 1e-15
    assert _of("maxrl", grouped([left, 0.0, 0.0, 0.0], 4)) == [0.0] * 4


def _with_components(first: float, second: float) -> RewardBatch:
    """Two groups: in one only the first component differs, in the other only the second, which is ten times larger."""
    values = {"first": (first, [1.0, 0.0, 1.0, 1.0]), "second": (second, [0.0, 0.0, 10.0, 0.0])}
    components = {name: torch.tensor(own, dtype=torch.float64) * weight for name, (weight, own) in values.items()}
    weights = {name: weight for name, (weight, _) in values.items()}
    rewards = components["first"] + components["second"]
    return grouped(rewards.tolist(), 2, components=components, weights=weights)


def test_each_component_is_normalised_by_itself_before_it_is_weighed() -> None:
    """Each differs by 1/2 from its mean, in standard deviations of sqrt(1/2), or by 5, in such of sqrt(50): both are 1 / sqrt(2).

    Weighed 2 and 1, the sums are +-sqrt(2) and +-1 / sqrt(2), whose variance is (2 + 2 + 1/2 + 1/2) / 3 = 5/3.
    """
    expected = [1.2**0.5, -(1.2**0.5), 0.3**0.5, -(0.3**0.5)]
    assert _of("gdpo", _with_components(2.0, 1.0)) == pytest.approx(expected, abs=1e-5)


def test_a_component_whose_weight_is_0_at_a_step_teaches_nothing() -> None:
    """Of the first alone: +-2 / sqrt(2), and 0; the variance is (2 + 2) / 3."""
    assert _of("gdpo", _with_components(2.0, 0.0)) == pytest.approx([1.5**0.5, -(1.5**0.5), 0.0, 0.0], abs=1e-5)


def test_a_component_with_a_negative_weight_is_a_punishment() -> None:
    expected = [1.2**0.5, -(1.2**0.5), -(0.3**0.5), 0.3**0.5]
    assert _of("gdpo", _with_components(2.0, -1.0)) == pytest.approx(expected, abs=1e-5)
