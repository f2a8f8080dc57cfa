"""What all advantages have in common."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.batches import everything

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of
from dagrpo.algorithms.reward_batch import PolicyTokens
from dagrpo.core.plugin_sections import Choice


def _default(name: str) -> Choice:
    config: Choice = ADVANTAGES.get(name).config(name=name)
    return config


LENGTHS = st.lists(st.integers(1, 5), min_size=12, max_size=12)
REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=12, max_size=12)


@pytest.mark.parametrize("name", ADVANTAGES.own_names())
def test_equal_rewards_teach_exactly_nothing(name: str) -> None:
    """In float32, as rewards are: the mean of eight is off by 3e-8 there. They are those of all groups, and greedy ones."""
    rewards = torch.full((8,), 0.3, dtype=torch.float32).double().tolist()
    batch = everything(rewards, 5, 3, lengths=[3, 1, 4, 1, 5, 9, 2, 6])
    assert advantages_of(batch, _default(name)).tolist() == [0.0] * 31


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        *((name, {}) for name in ADVANTAGES.own_names() if name != "reinforce_plus_plus_baseline"),  # see its docstring
        ("optimal_token_baseline", {"learns_lone_tail": True}),
    ],
)
def test_an_estimator_that_learns_from_a_group_of_equal_rewards_says_so(name: str, keys: dict[str, bool]) -> None:
    """Beside a group with spread. The greedy reward is another one, components cancel each other, and one is longest."""
    batch = everything([0.5, 0.5, 0.5, 1.0, 0.0, 0.0], 3, lengths=[4, 1, 2, 1, 1, 1])
    first = torch.tensor([0.5, 0.0, 0.5, 1.0, 0.0, 0.0], dtype=torch.float64)
    batch = replace(
        batch,
        components={"accuracy": first, "format": batch.rewards - first},
        greedy_rewards=torch.zeros(2, dtype=torch.float64),
    )
    config = ADVANTAGES.get(name).config(name=name, **keys)
    learns = advantages_of(batch, config)[:7].count_nonzero() > 0
    assert bool(learns) is ADVANTAGES.get(name).learns_from_equal(config)


# Why the advantages of a group need not add up to 0, where the published formula does not have that.
NO_GROUP_SUM = {
    "grpo_passk": "only the best of a group has one",
    "reinforce_plus_plus": "it compares across prompts",
    "remax": "it compares with the greedy completion",
}


@given(REWARDS, st.sampled_from([name for name in ADVANTAGES.own_names() if name not in NO_GROUP_SUM]))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(rewards: list[float], name: str) -> None:
    batch = everything(rewards, 4)
    # Of one token each, whose gradients are alike: what is weighed by lengths or by gradients has equal weights.
    alike = PolicyTokens(logprobs=batch.rewards * 0 - 1, collision=batch.rewards * 0 + 0.5)
    advantages = advantages_of(replace(batch, policy=alike), _default(name))
    assert advantages.view(3, 4).sum(dim=1).abs().max() < 1e-12
    for start in (0, 4, 8):
        group = list(zip(rewards[start : start + 4], advantages[start : start + 4].tolist(), strict=True))
        assert all(a <= b + 1e-6 for (r, a) in group for (s, b) in group if r <= s)


@given(REWARDS, LENGTHS, st.permutations(range(4)), st.sampled_from(ADVANTAGES.own_names()))
def test_the_order_of_trajectories_changes_no_advantage(
    rewards: list[float], lengths: list[int], order: list[int], name: str
) -> None:
    """Groups the other way round, and each of them shuffled."""
    places = [4 * group + place for group in (2, 1, 0) for place in order]
    batch = everything(rewards, 4, lengths=lengths)
    moved = everything([rewards[each] for each in places], 4, lengths=[lengths[each] for each in places])
    assert batch.greedy_rewards is not None
    moved = replace(moved, greedy_rewards=batch.greedy_rewards.flip(0))
    parts = torch.split(advantages_of(batch, _default(name)), lengths)
    expected = torch.cat([parts[each] for each in places])
    assert (advantages_of(moved, _default(name)) - expected).abs().max() < 1e-12
