"""The update on a tiny random model: the policy gradient, of what counts alone, with or without a reference policy."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.trainer.small_updates import (
    ADVANTAGES,
    BATCH,
    COMPLETIONS,
    CPU,
    FILTERED,
    IN_THE_REWARD,
    OTHERS,
    PROMPTS,
    SHARED,
    SHARED_ADVANTAGES,
    moved_policy,
    small_policy,
    small_update,
    update_once,
)
from tests.trainer.updates import batch_of

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.model.optimizer import decayed, warmed_up
from dagrpo.trainer.model.policy import Policy, token_logprobs


def _norm_of(policy: Policy, loss: torch.Tensor) -> float:
    """Return the norm of a loss's gradient."""
    loss.backward()  # type: ignore[no-untyped-call]
    return float(torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm())


def _losses(policy: Policy, batch: Batch = BATCH, advantages: torch.Tensor = ADVANTAGES) -> torch.Tensor:
    """Return the policy gradient's loss of each token."""
    padded = batch.sequences.padded(range(8), 0, CPU)
    return -token_logprobs(policy, padded, 1.0).logprobs * advantages[padded.rows]


def test_the_first_update_is_the_policy_gradient_with_the_mean_over_tokens() -> None:
    policy = small_policy()
    norm = _norm_of(policy, _losses(policy).mean())
    assert update_once()[1].grad_norm == pytest.approx(norm, rel=1e-4)


def test_the_first_update_of_gspo_is_the_policy_gradient_with_the_mean_over_sequences() -> None:
    policy = small_policy()
    means = [part.mean() for part in torch.split(_losses(policy), [len(c) for c in COMPLETIONS])]
    norm = _norm_of(policy, torch.stack(means).mean())
    for size in (256, 3):
        assert update_once(loss="gspo", micro_batch_size=size)[1].grad_norm == pytest.approx(norm, rel=1e-4)


def test_a_masked_token_between_two_turns_is_read_but_not_learned() -> None:
    """The hole's tokens change what follows, and have no gradient of their own."""
    policy = small_policy()
    ids, mask = [[1, 2, 5, 9, 9, 6]], [[False, False, True, False, False, True]]
    sequences = TokenSequences.of(ids, mask)
    batch = Batch(
        sequences=sequences,
        trajectories=torch.zeros(1, dtype=torch.int64),
        rollout_logprobs=torch.zeros(2),
        positive=torch.ones(1, dtype=torch.bool),
        advantages=torch.ones(2),
    )
    logits = torch.log_softmax(policy.model(input_ids=torch.tensor(ids)).logits[0], dim=-1)
    stats = small_update(policy, 8, {}, {}).run(0, batch)
    torch.testing.assert_close(stats.logprobs, torch.stack([logits[1, 5], logits[4, 6]]).detach())


@pytest.mark.parametrize("micro_batch_size", [1, 3, 8])
def test_the_samples_of_a_trajectory_are_one_sequence_to_weights_and_to_a_loss(micro_batch_size: int) -> None:
    policy = small_policy()
    tokens_of_each_trajectory = [3 + 1, 2, 4, 1, 2 + 3 + 2]
    means = [part.mean() for part in torch.split(_losses(policy, SHARED, SHARED_ADVANTAGES), tokens_of_each_trajectory)]
    norm = _norm_of(policy, torch.stack(means).mean())
    stats = small_update(small_policy(), micro_batch_size, {"aggregation": "seq-mean-token-mean"}, {}).run(0, SHARED)
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)
    algorithm = {"loss": {"name": "tests.trainer.updates:SQUARES"}}
    stats = small_update(small_policy(), micro_batch_size, algorithm, {}).run(0, SHARED)
    assert stats.metrics["squares"] * 18 == pytest.approx(4**2 + 2**2 + 4**2 + 1**2 + 7**2)


def test_mini_batches_are_cut_by_prompts_and_one_with_nothing_in_it_is_skipped() -> None:
    """Of two prompts with four samples each the second has nothing left."""
    half = batch_of(PROMPTS[:3], COMPLETIONS[:3], ADVANTAGES[:3], places=[0, 2, 3])
    policy, other = small_policy(), small_policy()
    stats = small_update(policy, 8, {}, {"mini_batches": 2}).run(0, half)
    alone = small_update(other, 8, {}, {}).run(0, half)
    assert stats.grad_norm == alone.grad_norm
    assert stats.loss == alone.loss
    for a, b in zip(policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_an_advantage_that_is_no_number_skips_the_update_also_of_a_loss_that_reads_none() -> None:
    assert BATCH.advantages is not None
    advantages = BATCH.advantages.clone()
    advantages[0] = torch.nan
    batch = replace(BATCH, advantages=advantages, teacher_logprobs=BATCH.rollout_logprobs)
    algorithm = {
        "loss": {"name": "on_policy_distillation"},
        "teacher": {"source": "initial", "prompt": "with_solution"},
    }
    for found, skipped in ((BATCH.advantages, 0), (advantages, 1)):
        stats = small_update(small_policy(), 8, algorithm, {}).run(0, replace(batch, advantages=found))
        assert stats.skipped == skipped


def test_logprobs_are_those_of_the_policy_that_sampled_also_with_several_mini_batches() -> None:
    _, one = update_once(mini_batches=1)
    _, two = update_once(mini_batches=2)
    torch.testing.assert_close(one.logprobs, two.logprobs)
    assert one.metrics["clip_fraction"] == 0.0


def test_the_entropy_bonus_raises_the_entropy() -> None:
    """The advantages are 0: the only gradient is that of the bonus."""
    indifferent = batch_of(PROMPTS, COMPLETIONS, torch.zeros(8))
    policy = moved_policy()
    update = small_update(policy, 3, {"terms": {"entropy": {"coefficient": 1.0}}}, {"learning_rate": 1e-3})
    first, second = update.run(0, indifferent), update.run(1, indifferent)
    assert first.grad_norm > 0
    assert second.entropy > first.entropy


def test_the_learning_rate_rises_linearly_and_stays() -> None:
    assert [warmed_up(1.0, update, 4) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmed_up(0.5, 0, 0) == 0.5


def test_the_decay_is_linear_and_ends() -> None:
    assert [decayed(0.2, update, 4) for update in (0, 2, 4, 5)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert {decayed(1.0, update, 7) for update in range(20)} == {1.0}


def test_a_gradient_that_is_not_finite_is_skipped_and_leaves_the_weights_as_they_were() -> None:
    policy = small_policy()
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    stats = small_update(policy, 8, {}, {}).run(0, batch_of(PROMPTS, COMPLETIONS, ADVANTAGES * float("nan")))
    assert (stats.skipped, stats.grad_norm, stats.loss) == (1, 0.0, 0.0)
    assert all(torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))


ALONE = batch_of(
    [PROMPTS[place] for place in OTHERS],
    [COMPLETIONS[place] for place in OTHERS],
    ADVANTAGES[OTHERS],
    places=OTHERS,
)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "prompt-mean", "constant"])
@pytest.mark.parametrize("micro_batch_size", [3, 8])
def test_what_does_not_count_changes_neither_the_policys_loss_nor_what_is_added_to_it(
    aggregation: str, micro_batch_size: int
) -> None:
    algorithm = {
        "aggregation": aggregation,
        "kl": {"coefficient": 0.1},
        "terms": {"positive_nll": {"coefficient": 0.5}},
    }
    (policy, other), stats = (small_policy(), small_policy()), []
    for each, batch in ((policy, FILTERED), (other, ALONE)):
        stats.append(small_update(each, micro_batch_size, algorithm, {"mini_batches": 2}).run(0, batch))
    assert stats[0].loss == pytest.approx(stats[1].loss, rel=1e-5)
    assert stats[0].grad_norm == pytest.approx(stats[1].grad_norm, rel=1e-4)
    assert stats[0].entropy == pytest.approx(stats[1].entropy, rel=1e-5)
    assert stats[0].kl == pytest.approx(stats[1].kl, rel=1e-3, abs=1e-7)
    assert stats[0].metrics == pytest.approx(stats[1].metrics, rel=1e-3, abs=1e-6)
    assert len(stats[0].logprobs) == sum(map(len, COMPLETIONS)), "its tokens are looked at all the same"
    for a, b in zip(policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_a_mini_batch_in_which_nothing_counts_makes_no_update() -> None:
    policy = small_policy()
    update = small_update(policy, 8, {"kl": {"coefficient": 0.1}}, {})
    update.run(0, BATCH)  # so that the optimizer has a momentum
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    stats = update.run(1, replace(BATCH, counted=torch.zeros(8, dtype=torch.bool)))
    assert (stats.loss, stats.grad_norm) == (0.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert update.run(2, BATCH).grad_norm > 0


def _select_highest(batch: MiniBatch, config: Choice) -> torch.Tensor:
    """Refuses to see a token that does not count; marks those with an advantage of 2."""
    assert len(batch.advantages) == sum(len(COMPLETIONS[place]) for place in OTHERS)
    return batch.advantages == 2.0


def _selected_loss(batch: TokenBatch, config: Choice) -> TokenLoss:
    assert batch.selected is not None
    return TokenLoss(
        per_token=0 * batch.logprobs, metrics={"marked": (batch.selected * (batch.advantages == 2.0)).sum()}
    )


SELECTS = Loss(config=Choice, function=_selected_loss, select=_select_highest)


def test_a_loss_selects_among_the_tokens_that_count() -> None:
    """One sequence of one token has an advantage of 2."""
    algorithm = {"loss": {"name": "tests.trainer.update.test_policy_update:SELECTS"}}
    stats = small_update(small_policy(), 3, algorithm, {}).run(0, FILTERED)
    count = sum(len(COMPLETIONS[place]) for place in OTHERS)
    assert stats.metrics["marked"] * count == pytest.approx(1.0)


def test_a_mini_batch_in_which_nothing_counts_is_no_part_of_a_mean() -> None:
    """Of two prompts with four samples each the second does not count."""
    half = replace(BATCH, counted=torch.tensor([place < 4 for place in range(8)]))
    alone = batch_of(PROMPTS[:4], COMPLETIONS[:4], ADVANTAGES[:4])
    stats = [
        small_update(small_policy(), 8, {}, {"mini_batches": 2}).run(0, half),
        small_update(small_policy(), 8, {}, {}).run(0, alone),
    ]
    assert stats[0].grad_norm == pytest.approx(stats[1].grad_norm, rel=1e-4)
    assert stats[0].loss == pytest.approx(stats[1].loss, rel=1e-5)


def test_a_number_that_is_none_in_what_does_not_count_skips_no_update() -> None:
    batch = replace(FILTERED, rollout_logprobs=FILTERED.rollout_logprobs.clone())
    left_out = ~batch.counted_tokens()
    batch.rollout_logprobs[left_out] = -torch.inf
    algorithm = {"correction": {"name": "token_truncated"}}
    assert small_update(small_policy(), 8, algorithm, {}).run(0, batch).skipped == 0


def test_the_divergence_is_measured_against_the_reference_and_zero_at_the_start() -> None:
    _, updated = update_once(kl_coefficient=0.1)
    assert updated.kl == pytest.approx(0.0, abs=1e-6)
    _, later = update_once(kl_coefficient=0.1, mini_batches=2)
    assert later.kl > 0.0


@dataclass(slots=True)
class _Forwards:
    """How often a policy was run."""

    count: int = 0

    @classmethod
    def of(cls, policy: Policy) -> "_Forwards":
        seen = cls()
        policy.register_forward_hook(seen)
        return seen

    def __call__(self, *given: object) -> None:
        self.count += 1


@pytest.mark.parametrize("micro_batch_size", [1, 3, 8])
def test_a_penalty_in_the_reward_is_of_both_policies_before_the_update(micro_batch_size: int) -> None:
    whole = BATCH.sequences.padded(range(8), 0, CPU)
    policy, reference = (
        token_logprobs(each, whole, 1.0).logprobs.detach() for each in (moved_policy(), small_policy())
    )
    update = small_update(moved_policy(), micro_batch_size, IN_THE_REWARD, {"mini_batches": 2})
    before = update.before(BATCH)
    assert before is not None
    torch.testing.assert_close(before.logprobs, policy)
    torch.testing.assert_close(before.reference_logprobs, reference)
    penalty = update.objective.penalty(before.logprobs, before.reference_logprobs)
    assert penalty is not None
    torch.testing.assert_close(penalty, 0.1 * (policy - reference).double(), check_dtype=False)


def test_a_penalty_in_the_reward_has_the_reference_run_once_and_the_divergence_measured() -> None:
    reference = small_policy()
    seen = _Forwards.of(reference)
    update = small_update(moved_policy(), 3, IN_THE_REWARD, {}, reference=reference)
    before = update.before(BATCH)
    assert before is not None
    assert before.reference_logprobs is not None
    count = seen.count
    stats = update.run(0, BATCH, before)
    assert seen.count == count > 0
    assert stats.kl == pytest.approx(float((before.logprobs - before.reference_logprobs).mean()), rel=1e-5)
    assert stats.kl != 0.0


@pytest.mark.parametrize(
    ("algorithm", "mini_batches", "of_policy", "of_reference"),
    [
        ({}, 1, 2, 0),  # two micro-batches: their logprobs are the old ones, too
        ({"kl": {"coefficient": 0.1}}, 1, 2, 2),
        ({}, 2, 2 + 2, 0),  # the second update's old logprobs are those before the first
        ({"kl": {"coefficient": 0.1}}, 2, 2 + 2, 2),
        (IN_THE_REWARD, 1, 2 + 2, 2),  # the rewards come before the update
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_forward_pass_is_made_that_nothing_needs(
    algorithm: dict[str, Any], mini_batches: int, of_policy: int, of_reference: int, dtype: torch.dtype
) -> None:
    policy, reference = Policy(small_policy().model, dtype=dtype), Policy(small_policy().model, dtype=dtype)
    seen, seen_of_reference = _Forwards.of(policy), _Forwards.of(reference)
    update = small_update(policy, 4, algorithm, {"mini_batches": mini_batches}, reference=reference)
    update.run(0, BATCH, update.before(BATCH))
    assert (seen.count, seen_of_reference.count) == (of_policy, of_reference)
