"""The update on a tiny random model: its gradient is the policy gradient."""

from dataclasses import replace

import pytest
import torch
from tests.trainer.small_updates import (
    ADVANTAGES,
    BATCH,
    COMPLETIONS,
    CPU,
    PROMPTS,
    SHARED,
    SHARED_ADVANTAGES,
    moved_policy,
    small_policy,
    small_update,
    update_once,
)
from tests.trainer.updates import batch_of

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
