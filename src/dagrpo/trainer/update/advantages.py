"""Advantages of a step's rollouts: selects trajectories and groups for the estimator."""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from dagrpo.algorithms.advantages import ADVANTAGES, BELOW_0, OverBatch, advantages_of
from dagrpo.algorithms.reward_batch import PolicyTokens, RewardBatch
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.update.stats import BeforeUpdate


def step_advantages(rollouts: Rollouts, config: Choice, before: BeforeUpdate | None, penalty: Tensor | None) -> Tensor:
    """Return one advantage per token of the kept trajectories, 0 where there is nothing to compare. [tokens] float32

    Trajectories that are left out, or that the update does not count, do not enter a baseline. The advantage is NaN where the
    reward is not finite, so that the update is skipped. `before`: if the estimator needs the policy. `penalty`: [tokens],
    subtracted from the tokens' rewards. Raises UserError if a reward is below 0 and the estimator does not accept that.
    """
    estimator = ADVANTAGES.get(config.name)
    lengths = rollouts.lengths
    places = _compared(rollouts) if estimator.compares else rollouts.counted
    if estimator.needs_greedy:
        places = _with_greedy_reward(rollouts, places)
    if estimator.never_negative:
        _require_none_below_0(rollouts, places, config.name)
    advantages = torch.zeros(sum(lengths), dtype=torch.float32)
    for own in _normalised_together(rollouts, places, config):
        chosen = _tokens_of(own, lengths)
        batch = _reward_batch(
            rollouts,
            own,
            lengths=lengths,
            penalty=None if penalty is None else penalty[chosen],
            policy=_policy_tokens(before, chosen) if estimator.needs_policy else None,
        )
        advantages[chosen] = advantages_of(batch, config).to(advantages.dtype)
        # Plus zero: -0.0 becomes 0.0. The table of rollouts has one value for equal ones, and a gradient shows the difference.
        advantages += 0.0
    if wrong := _without_a_number(rollouts):
        advantages[_tokens_of(wrong, lengths)] = math.nan
    return advantages


def _normalised_together(rollouts: Rollouts, places: Sequence[int], config: Choice) -> list[list[int]]:
    """Return the places that an estimator sees at once: all of them, or those of each task."""
    parts = dict[str, list[int]]()
    for place in places:
        task = rollouts.graded[place].trajectory.prompt.row.task
        parts.setdefault(task if isinstance(config, OverBatch) and config.per_task else "", []).append(place)
    return [*parts.values()]


def _without_a_number(rollouts: Rollouts) -> list[int]:
    """Return the indices of trajectories with a non-finite reward: not every estimator propagates it to their advantages."""
    return [place for place in rollouts.learned if not math.isfinite(rollouts.rewards[place])]


def _require_none_below_0(rollouts: Rollouts, places: Sequence[int], name: str) -> None:
    lowest = min((float(rollouts.rewards[place]) for place in places), default=0.0)
    if lowest < BELOW_0:
        raise UserError(
            f"step {rollouts.step + 1}: a reward is {lowest:g}, but algorithm.advantage {name} takes none below 0: change what "
            "reward.components are worth, or take algorithm.advantage: {name: grpo}."
        )


def _policy_tokens(before: BeforeUpdate | None, chosen: Tensor | slice) -> PolicyTokens:
    assert before is not None, "the update computes this for an estimator that needs it"
    assert before.collision is not None
    return PolicyTokens(logprobs=before.logprobs[chosen].double(), collision=before.collision[chosen].double())


def _compared(rollouts: Rollouts) -> list[int]:
    """Return the indices of the counted trajectories that have another counted trajectory in their group."""
    counted = Counter(place // rollouts.group_size for place in rollouts.counted)
    return [place for place in rollouts.counted if counted[place // rollouts.group_size] > 1]


def _with_greedy_reward(rollouts: Rollouts, places: Sequence[int]) -> list[int]:
    """Return the indices among `places` whose problem's greedy completion was not left out."""
    assert rollouts.greedy_rewards is not None, "the buffer samples them for an estimator that needs them"
    known = (~rollouts.greedy_rewards.isnan()).tolist()
    return [place for place in places if known[place // rollouts.group_size]]


def _tokens_of(places: Sequence[int], lengths: Sequence[int]) -> Tensor | slice:
    """Return the token indices of the trajectories `places`: [tokens] int64, or a slice if these are all trajectories."""
    if sum(lengths[place] for place in places) == sum(lengths):
        return slice(None)  # an index of 64 bits for each token would be the largest tensor of a step
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return torch.cat([torch.arange(ends[place] - lengths[place], ends[place]) for place in places])


def _reward_batch(
    rollouts: Rollouts,
    places: Sequence[int],
    *,
    lengths: Sequence[int],
    penalty: Tensor | None,
    policy: PolicyTokens | None,
) -> RewardBatch:
    tokens = torch.tensor([lengths[place] for place in places])
    trajectory = torch.arange(len(places)).repeat_interleave(tokens)
    prompts = torch.tensor([place // rollouts.group_size for place in places])
    distinct, group = prompts.unique_consecutive(return_inverse=True)  # type: ignore[no-untyped-call]
    rewards = rollouts.rewards[list(places)].double()
    if penalty is not None:
        rewards = rewards.index_add(0, trajectory, -penalty)
    return RewardBatch(
        rewards=rewards,
        group=group,
        groups=len(distinct),
        trajectory=trajectory,
        components={name: values[list(places)].double() for name, values in rollouts.components.items()},
        weights=rollouts.weights,
        penalty=penalty,
        policy=policy,
        greedy_rewards=None if rollouts.greedy_rewards is None else rollouts.greedy_rewards[distinct].double(),
    )
