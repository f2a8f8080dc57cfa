"""The update with a reference policy: divergences, penalties, and no forward pass that nothing needs."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.trainer.small_updates import BATCH, CPU, IN_THE_REWARD, moved_policy, small_policy, small_update, update_once

from dagrpo.trainer.model.policy import Policy, token_logprobs


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
