"""Checks of the objective against the batches that training makes for it."""

from dagrpo.algorithms.advantages import ADVANTAGES, BELOW_0
from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.corrections import CORRECTIONS
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.terms import TERMS, computed
from dagrpo.core.errors import UserError
from dagrpo.rewards.components import lowest_reward
from dagrpo.rewards.config import Reward
from dagrpo.trainer.config.dynamic_sampling import DynamicSampling

GRPO = "take algorithm.advantage: {name: grpo}"


def require_rewards_fit(algorithm: Algorithm, reward: Reward) -> None:
    """Raise UserError if the advantage cannot be computed from the components of the reward."""
    name, components = algorithm.advantage.name, reward.components
    advantage = ADVANTAGES.get(name)
    weighted = [component for component, config in components.items() if config.counts]
    if advantage.needs_components and len(weighted) < 2:
        raise UserError(
            f"algorithm.advantage {name} normalises each component of the reward by itself, but {weighted[0]} is the only one "
            f"with a weight: give reward.components another one, or {GRPO}"
        )
    lowest = lowest_reward(components)
    if advantage.never_negative and lowest is not None and lowest < BELOW_0:
        raise UserError(
            f"algorithm.advantage {name} requires non-negative rewards, but reward.components can give one as low as {lowest:g}: raise "
            f"the lowest prices, leave out penalties, or {GRPO}"
        )


def require_groups_fit(
    algorithm: Algorithm, samples: int, *, zero_variance_filter: bool, dynamic_sampling: DynamicSampling
) -> None:
    """Raise UserError if the advantage learns nothing from groups of `samples`, or a filter drops groups that it learns from."""
    config = algorithm.advantage
    advantage = ADVANTAGES.get(config.name)
    if samples == 1 and advantage.compares and not LOSSES.get(algorithm.loss.name).needs_teacher:
        raise UserError(
            f"training.samples_per_prompt is 1, but algorithm.advantage {config.name} compares the samples of a prompt: set "
            "training.samples_per_prompt to 2 or more, or take algorithm.advantage: {name: reinforce_plus_plus} or {name: remax}"
        )
    if not advantage.learns_from_equal(config):
        return
    start = f"algorithm.advantage {config.name} can learn from groups of equal rewards, which training."
    if zero_variance_filter:
        raise UserError(f"{start}zero_variance_filter leaves out: set that to false, or {GRPO}")
    if dynamic_sampling.wants_spread:
        raise UserError(
            f"{start}dynamic_sampling throws away: set its max_rounds and oversampling to 1, its spread_of to null where "
            f"max_aborts is above 0, or {GRPO}"
        )


def require_updates_fit(algorithm: Algorithm, mini_batches: int, off_policy: tuple[str, str] | None) -> None:
    """Raise UserError if the loss needs later updates of a step, or nothing corrects tokens that earlier weights sampled.

    `off_policy`: as Training.off_policy.
    """
    name = algorithm.loss.name
    loss, correction = LOSSES.get(name), algorithm.correction.name
    if loss.needs_later_updates and mini_batches == 1:
        raise UserError(
            f"algorithm.loss {name} differs from the policy gradient only after a step's first update, and with "
            "training.mini_batches 1 there is no other: set training.mini_batches to 2 or more, or take algorithm.loss: {name: gpg}"
        )
    if off_policy is None:
        return
    why, remedy = off_policy
    if not (CORRECTIONS.get(correction).weighs or loss.anchored_on_rollout(algorithm.loss)):
        raise UserError(
            f"{why}, but with algorithm.correction {correction} nothing weighs tokens that earlier weights sampled: take "
            f"algorithm.correction: {{name: token_truncated}}, or set {remedy}"
        )
    for term in computed(algorithm.terms):
        if TERMS.get(term).needs_teacher:
            raise UserError(
                f"{why}, but no correction weighs algorithm.terms.{term}, which assumes that the current policy sampled the tokens: "
                f"take algorithm.loss: {{name: on_policy_distillation}}, set algorithm.terms.{term}.coefficient to 0, or {remedy}"
            )
    if algorithm.kl.coefficient and algorithm.kl.corrected:
        raise UserError(
            f"{why}, but algorithm.kl.corrected multiplies by the ratio to the policy at the beginning of the step, which is then "
            f"not the one that sampled: set algorithm.kl.corrected to false, or {remedy}"
        )
