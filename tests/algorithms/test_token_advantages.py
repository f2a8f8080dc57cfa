"""Advantages that differ from token to token, or are made comparable over all of them, computed by hand."""

from typing import Any

import pytest
import torch
from tests.algorithms.batches import grouped

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of
from dagrpo.algorithms.reward_batch import PolicyTokens, RewardBatch, whitened


def _of(name: str, batch: RewardBatch, **keys: Any) -> list[float]:
    return advantages_of(batch, ADVANTAGES.get(name).config(name=name, **keys)).tolist()


def _doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_return_is_discounted_from_token_to_token_of_its_own_trajectory() -> None:
    batch = grouped([1.0, 3.0], 2, lengths=[3, 1])
    assert batch.position.tolist() == [0, 1, 2, 0]
    assert batch.returns(1.0).tolist() == [1.0, 1.0, 1.0, 3.0]
    assert batch.returns(0.5).tolist() == [0.25, 0.5, 1.0, 3.0]


def test_penalties_are_discounted_with_the_reward() -> None:
    """Token rewards -1/4 and 1/2, as 1 is lost by 1/4 and 1/2: returns 1/2 and -1/4 + gamma / 2; 0 - 1/8 alone."""
    batch = grouped([0.25, -0.125], 2, lengths=[2, 1], penalty=_doubles(0.25, 0.5, 0.125))
    assert batch.returns(1.0).tolist() == [0.25, 0.5, -0.125]
    assert batch.returns(0.5).tolist() == [0.0, 0.5, -0.125]


def test_whitened_values_have_mean_0_and_variance_1() -> None:
    """Mean 2/3; the squares 1/9, 1/9 and 4/9 divided by 2 are 1/3."""
    assert whitened(_doubles(1.0, 1.0, 0.0)).tolist() == pytest.approx([3**-0.5, 3**-0.5, -2 * 3**-0.5])
    assert whitened(_doubles(5.0)).tolist() == [0.0]


def test_reinforce_plus_plus_whitens_the_returns_of_all_tokens() -> None:
    batch = grouped([1.0, 0.0], 2, lengths=[2, 1])
    assert _of("reinforce_plus_plus", batch) == pytest.approx([3**-0.5, 3**-0.5, -2 * 3**-0.5])
    # Returns 1/2, 1, 0: mean 1/2, variance 1/4.
    assert _of("reinforce_plus_plus", batch, gamma=0.5) == pytest.approx([0.0, 1.0, -1.0], abs=1e-6)


def test_equal_rewards_of_a_group_teach_something_where_other_prompts_have_others() -> None:
    """Returns 1, 1, 0, 0: mean 1/2, variance 1/3."""
    batch = grouped([1.0, 1.0, 0.0, 0.0], 2)
    expected = 0.5 * 3**0.5
    assert _of("reinforce_plus_plus", batch) == pytest.approx([expected, expected, -expected, -expected])


def test_with_the_groups_baseline_what_is_whitened_is_the_difference_to_it() -> None:
    """1/2, and -1/2 on three tokens: mean -1/4, variance (9/16 + 3/16) / 3 = 1/4."""
    batch = grouped([1.0, 0.0], 2, lengths=[1, 3])
    assert _of("reinforce_plus_plus_baseline", batch) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_remax_compares_with_the_greedy_completion_of_the_prompt() -> None:
    batch = grouped([1.0, 0.0, 0.5, 1.0], 2, lengths=[2, 1, 1, 1], greedy_rewards=_doubles(0.25, 1.0))
    assert _of("remax", batch) == [0.75, 0.75, -0.25, -0.5, 0.0]


def test_remax_compares_the_rewards_that_are_to_come() -> None:
    """The returns with penalties above, less 1/4; the greedy completion has no penalty."""
    penalty = _doubles(0.25, 0.5, 0.125)
    batch = grouped([0.25, -0.125], 2, lengths=[2, 1], penalty=penalty, greedy_rewards=_doubles(0.25))
    assert _of("remax", batch) == [0.0, 0.25, -0.375]


def _of_probability(*probabilities: float) -> PolicyTokens:
    """Tokens of a vocabulary in which each token is as likely as the sampled one: a sum of squares of p * p / p."""
    return PolicyTokens(logprobs=_doubles(*probabilities).log(), collision=_doubles(*probabilities))


def test_the_baseline_of_a_token_weighs_each_trajectory_by_its_gradients_so_far() -> None:
    """1 - 2 p + p is 1/2 for p = 1/2, 3/4 for p = 1/4 and 0 for p = 1.

    Rewards 1 and 0. First tokens: 1/2 and 3/4, so that the baseline is 1/2 / (5/4) = 2/5. Second: 5/4 and 3/4, 5/8.
    """
    batch = grouped([1.0, 0.0], 2, lengths=[2, 2], policy=_of_probability(0.5, 0.25, 0.25, 1.0))
    assert _of("optimal_token_baseline", batch) == pytest.approx([0.6, 0.375, -0.4, -0.625], abs=1e-7)


@pytest.mark.parametrize(("learns", "last"), [(False, 0.0), (True, 1.0)])
def test_the_tail_that_no_other_completion_has_is_learned_from_only_on_demand(learns: bool, last: float) -> None:
    batch = grouped([1.0, 0.0], 2, lengths=[2, 1], policy=_of_probability(0.5, 0.25, 0.25))
    found = _of("optimal_token_baseline", batch, learns_lone_tail=learns)
    assert found == pytest.approx([0.6, last, -0.4], abs=1e-7)


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


def test_baselines_of_tokens_are_those_of_their_own_group() -> None:
    first, second = _of_probability(0.5, 0.25, 0.25, 1.0), _of_probability(0.25, 0.5)
    alone = _of("optimal_token_baseline", grouped([1.0, 0.0], 2, lengths=[2, 2], policy=first))
    other = _of("optimal_token_baseline", grouped([0.0, 2.0], 2, policy=second))
    both = PolicyTokens(
        logprobs=torch.cat([first.logprobs, second.logprobs]), collision=torch.cat([first.collision, second.collision])
    )
    batch = grouped([1.0, 0.0, 0.0, 2.0], 2, lengths=[2, 2, 1, 1], policy=both)
    assert _of("optimal_token_baseline", batch) == pytest.approx([*alone, *other])
