"""The update is the same however its work is cut, into micro-batches or among ranks."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.trainer.small_updates import (
    ADVANTAGES,
    BATCH,
    COMPLETIONS,
    CPU,
    FILTERED,
    PROMPTS,
    SHARED,
    moved_policy,
    small_policy,
    small_update,
)
from tests.trainer.updates import batch_of

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.model.policy import Policy
from dagrpo.utils.distributed import World


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone(World):
    """A rank that hears nothing of the others."""

    def all_reduce(self, values: torch.Tensor) -> torch.Tensor:
        return values


TERMS = {name: {"coefficient": 0.1} for name in ("entropy", "positive_nll", "squared_log_ratio")}


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"kl": {"coefficient": 0.1}},
        {"advantage": {"name": "rloo"}, "kl": {"coefficient": 0.1, "place": "reward"}},
        {"loss": {"name": "gspo"}},
        {"correction": {"name": "sequence_masked"}, "off_policy_mask": 0.5, "terms": TERMS},
    ],
)
def test_a_rank_without_a_trajectory_adds_nothing_and_measures_what_the_others_do(algorithm: dict[str, Any]) -> None:
    one = batch_of(PROMPTS[:1], COMPLETIONS[:1], ADVANTAGES[:1])
    stats, moved = [], []
    for rank in range(2):
        policy = small_policy()
        world = _Alone(rank=rank, size=2, device=CPU)
        stats.append(small_update(policy, 8, algorithm, {}, world).run(0, one))
        moved.append(
            any(not torch.equal(a, b) for a, b in zip(policy.parameters(), small_policy().parameters(), strict=True))
        )
    idle, busy = stats
    assert moved == [False, True]
    measured = {value for name, value in idle.metrics.items() if not name.endswith("_coefficient")}
    assert (idle.loss, idle.kl, idle.grad_norm, measured) == (0.0, 0.0, 0.0, {0.0})
    assert idle.metrics.keys() == busy.metrics.keys()
    assert idle.logprobs.tolist() == [0.0] * 3
    assert busy.grad_norm > 0


CUT = (
    Budget(sequences=1),
    Budget(sequences=3),
    Budget(sequences=256, tokens=12),
    Budget(sequences=256, tokens=1),
    Budget(sequences=2, tokens=14),
    Budget(sequences=256, layout="packed"),
    Budget(sequences=3, layout="packed"),
    Budget(sequences=256, tokens=9, layout="packed"),
    Budget(sequences=256, layout="packed", head_chunk_tokens=2),
)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "prompt-mean"])
@pytest.mark.parametrize(
    "rollouts", [SHARED, *(pytest.param(rollouts, marks=pytest.mark.nightly) for rollouts in (BATCH, FILTERED))]
)
def test_the_gradient_in_double_is_that_of_one_big_batch_however_it_is_cut(aggregation: str, rollouts: Batch) -> None:
    """Sorted by length and cut by sequences or tokens; also where trajectories share a sequence or do not count."""
    algorithm = {
        "aggregation": aggregation,
        "kl": {"coefficient": 0.1},
        "terms": {"positive_nll": {"coefficient": 0.5}},
    }
    whole, *all_cut = (
        small_update(moved_policy().double(), each, algorithm, {}, reference=small_policy().double())
        for each in (Budget(sequences=256), *CUT)
    )
    one = whole.run(0, rollouts)
    for cut in all_cut:
        other = cut.run(0, rollouts)
        for name, gradient in whole.gradient.items():
            torch.testing.assert_close(cut.gradient[name], gradient, rtol=1e-12, atol=1e-12)
        assert other.loss == pytest.approx(one.loss, rel=1e-12)
        assert other.metrics == pytest.approx(one.metrics, rel=1e-6, abs=1e-9)
        torch.testing.assert_close(other.logprobs, one.logprobs)


@pytest.mark.parametrize(
    ("loss", "selected"),
    [
        # Down to the quantile 0.2: the numbers 2 to 9 of 0 to 9, 2 to 7 of 0 to 7.
        ({"name": "top_entropy", "share": 0.8}, 8 + 6),
        ({"name": "kl_cov", "share": 0.3}, 3 + 2),
        ({"name": "clip_cov", "share": 0.3, "covariance_low": -1000.0, "covariance_high": 1000.0}, 3 + 2),
    ],
    ids=["top_entropy", "kl_cov", "clip_cov"],
)
def test_a_loss_selects_from_whole_mini_batches_however_they_are_cut(loss: dict[str, Any], selected: int) -> None:
    """Of 10 tokens and of 8, as the two mini-batches have them; of each of 8 micro-batches it would be one at least."""
    whole_policy, cut_policy = small_policy(), small_policy()
    whole = small_update(whole_policy, 256, {"loss": loss}, {"mini_batches": 2}).run(0, BATCH)
    cut = small_update(cut_policy, 1, {"loss": loss}, {"mini_batches": 2}).run(0, BATCH)
    assert whole.metrics["selected_fraction"] * 18 == pytest.approx(selected)
    assert cut.metrics["selected_fraction"] * 18 == pytest.approx(selected)
    assert cut.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)


class _TooLarge(Policy):
    """A policy that no device has room for."""

    def forward(self, *inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.27 GiB.")


@pytest.mark.parametrize(
    ("budget", "advice"),
    [
        (
            Budget(sequences=64),
            "lower runtime.training.micro_batch_size .it is 64., .* goes on from the last saved step",
        ),
        (Budget(sequences=64, tokens=900), "lower runtime.training.micro_batch_tokens .it is 900., .* goes on from"),
        (Budget(sequences=1), "set runtime.training.activation_checkpointing to true, or runtime.training.head_chunk"),
    ],
)
def test_running_out_of_memory_is_told_with_the_advice_that_helps(budget: Budget, advice: str) -> None:
    with pytest.raises(UserError, match=f"ran out of memory: {advice}") as caught:
        small_update(_TooLarge(small_policy().model), budget, {}, {}).run(0, BATCH)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
