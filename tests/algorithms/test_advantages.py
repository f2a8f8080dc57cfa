"""Advantages, computed by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of, advantages_of_kept
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


def test_what_is_left_out_is_no_part_of_its_groups_baseline() -> None:
    rewards = torch.tensor([1.0, 0.0, 99.0, 5.0, 7.0, 99.0, 1.0, 3.0, 5.0, 99.0, 99.0, 99.0])
    kept = torch.tensor([True, True, False, False, True, False, True, True, True, False, False, False])
    expected = [0.5, -0.5, 0.0, 0.0, 0.0, 0.0, -2.0, 0.0, 2.0, 0.0, 0.0, 0.0]
    assert advantages_of_kept(rewards, kept, 3, DR_GRPO).tolist() == expected
    # of the first group 1 - 0 and 0 - 1; of the third 1 - 4, 3 - 3 and 5 - 2
    expected = [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, -3.0, 0.0, 3.0, 0.0, 0.0, 0.0]
    assert advantages_of_kept(rewards, kept, 3, RLOO).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("config", [GRPO, DR_GRPO, RLOO])
@given(rewards=st.lists(st.floats(-3, 3, width=32), min_size=12, max_size=12), group=st.sampled_from([2, 3, 4, 6]))
def test_where_nothing_is_left_out_the_advantages_are_the_same_to_the_bit(
    config: Grpo | Rloo, rewards: list[float], group: int
) -> None:
    given_rewards = torch.tensor(rewards)
    kept = advantages_of_kept(given_rewards, torch.ones(12, dtype=torch.bool), group, config)
    assert torch.equal(kept, advantages_of(given_rewards, group, config))
