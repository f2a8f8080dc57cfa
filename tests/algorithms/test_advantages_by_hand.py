"""Advantages and returns computed by hand, some beside the formula written out; and what all advantages have in common."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.batches import everything, grouped

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of
from dagrpo.algorithms.reward_batch import PolicyTokens, RewardBatch, whitened
from dagrpo.core.plugin_sections import Choice


def _doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _of_probability(*probabilities: float) -> PolicyTokens:
    """Tokens of a vocabulary in which each token is as likely as the sampled one: a sum of squares of p * p / p."""
    return PolicyTokens(logprobs=_doubles(*probabilities).log(), collision=_doubles(*probabilities))


def _components(first: float, second: float) -> dict[str, Any]:
    """Two groups of two: in one only the first component differs, in the other only the second, which is ten times larger."""
    components = {"first": _doubles(1, 0, 1, 1) * first, "second": _doubles(0, 0, 10, 0) * second}
    return {"components": components, "weights": {"first": first, "second": second}}


def _of(name: str, batch: RewardBatch, **keys: Any) -> list[float]:
    return advantages_of(batch, ADVANTAGES.get(name).config(name=name, **keys)).tolist()


PENALTY = _doubles(0.25, 0.5, 0.125)  # of three tokens
SOME = [1.0, 0.0, 0.0, 1.0]
# Estimator and its keys, rewards and the sizes of their groups, lengths (None: one token each), what else the batch holds, advantages.
BY_HAND: list[tuple[str, dict[str, Any], list[float], tuple[int, ...], list[int] | None, dict[str, Any], list[float]]] = [
    # Mean 1/2, sample standard deviation sqrt(1/3).
    ("grpo", {}, SOME, (4,), None, {}, [0.5 * 3**0.5 * sign for sign in (1, -1, -1, 1)]),
    ("grpo", {"normalize_by_std": False}, [3, 0, 0, 1, 1, 1, 1, 1], (4,), None, {}, [2, -1, -1, 0, 0, 0, 0, 0]),
    # Of groups of two and three: 1 - 1/2 and 0 - 1/2; 1 - 3, 3 - 3 and 5 - 3. On all tokens of a trajectory.
    ("grpo", {"normalize_by_std": False}, [1, 0, 1, 3, 5], (2, 3), [1, 3, 1, 1, 1], {}, [0.5, -0.5, -0.5, -0.5, -2, 0, 2]),
    # Of the first group 1 - 1/3 and 0 - 2/3; of the second 3 - 0 and 0 - 1.
    ("rloo", {}, [*SOME, 3, 0, 0, 0], (4,), None, {}, [2 / 3, -2 / 3, -2 / 3, 2 / 3, 3, -1, -1, -1]),
    ("rloo", {}, [1, 0, 1, 3, 5], (2, 3), None, {}, [1, -1, -3, 0, 3]),
    # Mean 1/4, squares 9/16 and three times 1/16, divided by 3: the standard deviation is 1/2. Centred 1/2, -1/2, 0, 0: variance 1/6.
    ("batch_std", {}, [1, 0, 0, 0], (2,), None, {}, [1, -1, 0, 0]),
    ("batch_std", {"std_of": "centred"}, [1, 0, 0, 0], (2,), None, {}, [0.5 * 6**0.5, -0.5 * 6**0.5, 0, 0]),
    # Two are best in the second group. Deviations from 5/16 are -1, 11, -5 and -5 sixteenths, whose squares add up to 172.
    ("grpo_passk", {"normalize_by_std": False}, [0.25, 1, 0, 0, *SOME], (4,), None, {}, [0, 0.75, 0, 0, 0, 0, 0, 0]),
    ("grpo_passk", {}, [0.25, 1, 0, 0], (4,), None, {}, [0, 0.75 / (172 / 256 / 3) ** 0.5, 0, 0]),
    # (1 * 1 + 3 * 0) / 4 = 1/4; of the second group (2 * 1 + 1 * 0 + 5 * 1) / 8 = 7/8.
    ("opo", {}, [1, 0, 1, 0, 1], (2, 3), [1, 3, 2, 1, 5], {}, [0.75] + [-0.25] * 3 + [0.125] * 2 + [-0.875] + [0.125] * 5),
    # Half of the trajectories are in groups of equal rewards, so that the others count twice; none; two thirds, with a limit.
    ("gpg", {}, [1, 0, 1, 1], (2,), None, {}, [1, -1, 0, 0]),
    ("gpg", {}, [1, 0, 1, 0], (2,), None, {}, [0.5, -0.5, 0.5, -0.5]),
    ("gpg", {}, [1, 0, 1, 1, 0, 0], (2,), None, {}, [1, -1, 0, 0, 0, 0]),
    ("gpg", {"max_alpha": 9.0}, [1, 0, 1, 1, 0, 0], (2,), None, {}, [1.5, -1.5, 0, 0, 0, 0]),
    # Means 1/4, 1/2, 0 and -1/4; the last two teach nothing, nor does what rounding leaves of prices that cancel.
    ("maxrl", {}, [1, 0, 0, 0, 1, 1, *[0] * 6, -1, 0, 0, 0], (4,), None, {}, [3, -1, -1, -1, 1, 1, -1, -1, *[0] * 8]),
    ("maxrl", {}, [0.1 + 0.2 - 0.3, 0, 0, 0], (4,), None, {}, [0] * 4),
    # Each differs by 1/2 from its mean, in standard deviations of sqrt(1/2), or by 5, in such of sqrt(50): both are 1 / sqrt(2).
    # Weighed 2 and 1, the sums are +-sqrt(2) and +-1 / sqrt(2), whose variance is (2 + 2 + 1/2 + 1/2) / 3 = 5/3.
    ("gdpo", {}, [2, 0, 12, 2], (2,), None, _components(2, 1), [1.2**0.5, -(1.2**0.5), 0.3**0.5, -(0.3**0.5)]),
    ("gdpo", {}, [2, 0, -8, 2], (2,), None, _components(2, -1), [1.2**0.5, -(1.2**0.5), -(0.3**0.5), 0.3**0.5]),
    # The second weighs 0 at this step: +-2 / sqrt(2), and 0; the variance is (2 + 2) / 3.
    ("gdpo", {}, [2, 0, 2, 2], (2,), None, _components(2, 0), [1.5**0.5, -(1.5**0.5), 0, 0]),
    # Returns 1, 1, 0: mean 2/3, variance 1/3; discounted 1/2, 1, 0: mean 1/2, variance 1/4. Of two groups 1, 1, 0, 0: variance 1/3.
    ("reinforce_plus_plus", {}, [1, 0], (2,), [2, 1], {}, [3**-0.5, 3**-0.5, -2 * 3**-0.5]),
    ("reinforce_plus_plus", {"gamma": 0.5}, [1, 0], (2,), [2, 1], {}, [0, 1, -1]),
    ("reinforce_plus_plus", {}, [1, 1, 0, 0], (2,), None, {}, [0.5 * 3**0.5 * sign for sign in (1, 1, -1, -1)]),
    # 1/2, and -1/2 on three tokens: mean -1/4, variance (9/16 + 3/16) / 3 = 1/4.
    ("reinforce_plus_plus_baseline", {}, [1, 0], (2,), [1, 3], {}, [1.5, -0.5, -0.5, -0.5]),
    ("remax", {}, [1, 0, 0.5, 1], (2,), [2, 1, 1, 1], {"greedy_rewards": _doubles(0.25, 1)}, [0.75, 0.75, -0.25, -0.5, 0]),
    # Token rewards -1/4, 1/2 and -1/8, whose returns are 1/4, 1/2 and -1/8; the greedy completion has no penalty.
    ("remax", {}, [0.25, -0.125], (2,), [2, 1], {"penalty": PENALTY, "greedy_rewards": _doubles(0.25)}, [0, 0.25, -0.375]),
    # 1 - 2 p + p is 1/2 for p = 1/2, 3/4 for p = 1/4 and 0 for p = 1. First tokens: 1/2 and 3/4, so that the baseline is
    # 1/2 / (5/4) = 2/5. Second: 5/4 and 3/4, 5/8. The tail that no other completion has is learned from only on demand.
    ("optimal_token_baseline", {}, [1, 0], (2,), [2, 2], {"policy": _of_probability(0.5, 0.25, 0.25, 1)}, [0.6, 0.375, -0.4, -0.625]),
    ("optimal_token_baseline", {}, [1, 0], (2,), [2, 1], {"policy": _of_probability(0.5, 0.25, 0.25)}, [0.6, 0, -0.4]),
    ("optimal_token_baseline", {"learns_lone_tail": True}, [1, 0], (2,), [2, 1], {"policy": _of_probability(0.5, 0.25, 0.25)},
     [0.6, 1, -0.4]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "rewards", "sizes", "lengths", "changes", "expected"), BY_HAND)
def test_advantages_are_those_computed_by_hand(
    name: str, keys: Any, rewards: Any, sizes: Any, lengths: Any, changes: Any, expected: Any
) -> None:
    batch = grouped(list(map(float, rewards)), *sizes, lengths=lengths, **changes)
    assert _of(name, batch, **keys) == pytest.approx(expected, abs=1e-5)


def test_a_return_is_discounted_from_token_to_token_of_its_own_trajectory_with_its_penalties() -> None:
    """With penalties token rewards are -1/4 and 1/2, as 1 is lost by 1/4 and 1/2: returns 1/2 and -1/4 + gamma / 2; 0 - 1/8 alone."""
    batch = grouped([1.0, 3.0], 2, lengths=[3, 1])
    assert batch.position.tolist() == [0, 1, 2, 0]
    assert batch.returns(1.0).tolist() == [1.0, 1.0, 1.0, 3.0]
    assert batch.returns(0.5).tolist() == [0.25, 0.5, 1.0, 3.0]
    batch = grouped([0.25, -0.125], 2, lengths=[2, 1], penalty=PENALTY)
    assert batch.token_rewards().tolist() == [-0.25, 0.5, -0.125]
    assert batch.returns(1.0).tolist() == [0.25, 0.5, -0.125]
    assert batch.returns(0.5).tolist() == [0.0, 0.5, -0.125]


def test_whitened_values_have_mean_0_and_variance_1() -> None:
    """Mean 2/3; the squares 1/9, 1/9 and 4/9 divided by 2 are 1/3."""
    assert whitened(_doubles(1.0, 1.0, 0.0)).tolist() == pytest.approx([3**-0.5, 3**-0.5, -2 * 3**-0.5])
    assert whitened(_doubles(5.0)).tolist() == [0.0]


@pytest.mark.parametrize("seed", range(3))
def test_baselines_of_tokens_are_the_formula_written_out(seed: int) -> None:
    """Two groups of three with lengths from 1 to 6, token by token in plain Python."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (6,), generator=drawn).tolist()
    rewards = torch.rand(6, generator=drawn, dtype=torch.float64).tolist()
    probabilities = torch.split(torch.rand(sum(lengths), generator=drawn, dtype=torch.float64), lengths)
    batch = grouped(rewards, 3, lengths=lengths, policy=_of_probability(*torch.cat(probabilities).tolist()))
    expected = []
    for row, length in enumerate(lengths):
        for t in range(length):
            others = [each for each in range(6) if each // 3 == row // 3 and lengths[each] > t]
            energy = {each: sum(1 - p for p in probabilities[each][: t + 1].tolist()) for each in others}
            baseline = sum(rewards[each] * energy[each] for each in others) / sum(energy.values())
            expected.append(rewards[row] - baseline)
    assert _of("optimal_token_baseline", batch) == pytest.approx(expected, abs=1e-6)


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
