import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.algorithms.advantages.grpo import grpo_advantages


def test_a_group_of_two_right_of_four_has_the_hand_computed_advantages() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])  # mean 1/2, sample std sqrt(1/3)
    expected = 0.5 / (3**-0.5 + 1e-6)
    advantages = grpo_advantages(rewards, 4, normalize_by_std=True)
    assert advantages.tolist() == pytest.approx([expected, -expected, -expected, expected], abs=1e-6)


def test_without_the_standard_deviation_only_the_mean_is_taken_away() -> None:
    rewards = torch.tensor([3.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert grpo_advantages(rewards, 4, normalize_by_std=False).tolist() == [2.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_a_group_of_equal_rewards_teaches_nothing(normalize_by_std: bool) -> None:
    assert grpo_advantages(torch.full((8,), 0.3), 8, normalize_by_std).abs().max() < 1e-6


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=12, max_size=12))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(rewards: list[float]) -> None:
    advantages = grpo_advantages(torch.tensor(rewards), 4, normalize_by_std=True)
    assert advantages.view(3, 4).sum(dim=1).abs().max() < 1e-4
    for start in (0, 4, 8):
        group = list(zip(rewards[start : start + 4], advantages[start : start + 4].tolist(), strict=True))
        assert all(a <= b + 1e-6 for (r, a) in group for (s, b) in group if r <= s)
