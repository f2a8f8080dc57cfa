"""Advantages, computed by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of
from dagrpo.algorithms.advantages.grpo import Config as Grpo
from dagrpo.algorithms.advantages.grpo import grpo
from dagrpo.algorithms.advantages.rloo import Config as Rloo
from dagrpo.algorithms.advantages.rloo import rloo

GRPO, DR_GRPO, RLOO = Grpo(name="grpo"), Grpo(name="grpo", normalize_by_std=False), Rloo(name="rloo")
REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=12, max_size=12)


def test_a_group_of_two_right_of_four_has_the_hand_computed_advantages() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])  # mean 1/2, sample std sqrt(1/3)
    expected = 0.5 / (3**-0.5 + 1e-6)
    assert grpo(rewards, 4, GRPO).tolist() == pytest.approx([expected, -expected, -expected, expected], abs=1e-6)


def test_without_the_standard_deviation_only_the_mean_is_taken_away() -> None:
    rewards = torch.tensor([3.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert grpo(rewards, 4, DR_GRPO).tolist() == [2.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_leaving_one_out_compares_each_reward_with_the_mean_of_the_others() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 3.0, 0.0, 0.0, 0.0])
    # of the first group 1 - 1/3 and 0 - 2/3; of the second 3 - 0 and 0 - 1
    expected = [2 / 3, -2 / 3, -2 / 3, 2 / 3, 3.0, -1.0, -1.0, -1.0]
    assert rloo(rewards, 4, RLOO).tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("config", [GRPO, DR_GRPO, RLOO])
def test_a_group_of_equal_rewards_teaches_nothing(config: Grpo | Rloo) -> None:
    assert advantages_of(torch.full((8,), 0.3), 8, config).abs().max() < 1e-6


@given(REWARDS, st.sampled_from(ADVANTAGES.own_names()))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(rewards: list[float], name: str) -> None:
    advantages = advantages_of(torch.tensor(rewards), 4, ADVANTAGES.get(name).config(name=name))
    assert advantages.view(3, 4).sum(dim=1).abs().max() < 1e-4
    for start in (0, 4, 8):
        group = list(zip(rewards[start : start + 4], advantages[start : start + 4].tolist(), strict=True))
        assert all(a <= b + 1e-6 for (r, a) in group for (s, b) in group if r <= s)
