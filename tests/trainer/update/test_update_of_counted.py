"""The update learns from nothing that does not count, and measures nothing of it."""

from dataclasses import replace

import pytest
import torch
from tests.trainer.small_updates import (
    ADVANTAGES,
    BATCH,
    COMPLETIONS,
    FILTERED,
    OTHERS,
    PROMPTS,
    small_policy,
    small_update,
)
from tests.trainer.updates import batch_of

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice

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
    algorithm = {"loss": {"name": "tests.trainer.update.test_update_of_counted:SELECTS"}}
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
