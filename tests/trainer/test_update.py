"""The update on a tiny random model: its gradient is the policy gradient, however the work is cut."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.trainer.updates import batch_of
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.distributed import World, single_process
from dagrpo.errors import UserError
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.plugged import Choice
from dagrpo.params.training import Training
from dagrpo.trainer.optimizer import adamw, decayed, warmed_up
from dagrpo.trainer.packing import RolloutBatch, TokenSequences
from dagrpo.trainer.policy import Policy, token_logprobs
from dagrpo.trainer.update import PolicyUpdate, UpdateStats

COMPLETIONS = [[3, 4, 5], [6], [7, 8], [9, 3, 3, 1], [4], [5, 6], [7, 7, 7], [8, 1]]
PROMPTS = [([1, 2], [2, 3, 4])[n // 4] for n in range(8)]
ADVANTAGES = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 0.0, -1.0, -1.0])
BATCH = batch_of(PROMPTS, COMPLETIONS, ADVANTAGES)
CPU = torch.device("cpu")


def _policy() -> Policy:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    return Policy(Qwen2ForCausalLM(config).eval())


def _update(
    policy: Policy,
    micro_batch_size: int,
    algorithm: dict[str, Any],
    training: dict[str, Any],
    world: World | None = None,
    reference: Policy | None = None,
) -> PolicyUpdate:
    values = {"steps": 1, "prompts_per_step": 2, "samples_per_prompt": 4, "learning_rate": 1e-2, **training}
    settings = Algorithm.model_validate(
        {"correction": {"name": "none"}, **algorithm}
    )  # the engine's logprobs are made up
    return PolicyUpdate(
        policy=policy,
        reference=(reference or _policy()).requires_grad_(False) if settings.kl.coefficient else None,
        optimizer=adamw(policy.parameters(), 0.0),
        algorithm=settings,
        training=Training.model_validate(values),
        micro_batch_size=micro_batch_size,
        temperature=1.0,
        max_new_tokens=4,
        pad_token_id=0,
        world=world or single_process(),
    )


def _updated(
    kl_coefficient: float = 0.0, micro_batch_size: int = 256, loss: str = "ppo_clip", **training: Any
) -> tuple[Policy, UpdateStats]:
    policy = _policy()
    algorithm = {"kl": {"coefficient": kl_coefficient}, "loss": {"name": loss}}
    return policy, _update(policy, micro_batch_size, algorithm, training).run(0, BATCH)


def test_the_first_update_is_the_policy_gradient_with_the_mean_over_tokens() -> None:
    policy = _policy()
    batch = BATCH.sequences.padded(slice(0, 8), 0, CPU)
    loss = -(token_logprobs(policy, batch, 1.0).logprobs * ADVANTAGES[batch.rows]).sum() / sum(map(len, COMPLETIONS))
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
    _, updated = _updated()
    assert updated.grad_norm == pytest.approx(float(norm), rel=1e-4)


def test_the_first_update_of_gspo_is_the_policy_gradient_with_the_mean_over_sequences() -> None:
    policy = _policy()
    batch = BATCH.sequences.padded(slice(0, 8), 0, CPU)
    per_token = -token_logprobs(policy, batch, 1.0).logprobs * ADVANTAGES[batch.rows]
    means = torch.stack([part.mean() for part in torch.split(per_token, [len(c) for c in COMPLETIONS])])
    means.mean().backward()  # type: ignore[no-untyped-call]
    norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
    _, whole = _updated(loss="gspo")
    _, cut = _updated(loss="gspo", micro_batch_size=3)
    assert whole.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert cut.grad_norm == pytest.approx(float(norm), rel=1e-4)


def test_a_masked_token_between_two_turns_is_read_but_not_learned() -> None:
    """The hole's tokens change what follows, and have no gradient of their own."""
    policy = _policy()
    ids, mask = [[1, 2, 5, 9, 9, 6]], [[False, False, True, False, False, True]]
    sequences = TokenSequences.of(ids, mask)
    batch = RolloutBatch(
        sequences=sequences,
        trajectories=torch.zeros(1, dtype=torch.int64),
        rollout_logprobs=torch.zeros(2),
        positive=torch.ones(1, dtype=torch.bool),
        advantages=torch.ones(2),
    )
    logits = torch.log_softmax(policy.model(input_ids=torch.tensor(ids)).logits[0], dim=-1)
    stats = _update(policy, 8, {}, {}).run(0, batch)
    torch.testing.assert_close(stats.logprobs, torch.stack([logits[1, 5], logits[4, 6]]).detach())


# The first two sequences are samples of one trajectory, and so are the last three.
SHARED_ADVANTAGES = ADVANTAGES[[0, 0, 2, 3, 4, 5, 5, 5]]
SHARED = replace(batch_of(PROMPTS, COMPLETIONS, SHARED_ADVANTAGES), trajectories=torch.tensor([0, 0, 2, 3, 4, 5, 5, 5]))


@pytest.mark.parametrize("micro_batch_size", [1, 3, 8])
def test_the_samples_of_a_trajectory_are_one_sequence_to_weights(micro_batch_size: int) -> None:
    policy = _policy()
    batch = SHARED.sequences.padded(slice(0, 8), 0, CPU)
    per_token = -token_logprobs(policy, batch, 1.0).logprobs * SHARED_ADVANTAGES[batch.rows]
    tokens_of_each_trajectory = [3 + 1, 2, 4, 1, 2 + 3 + 2]
    means = torch.stack([part.mean() for part in torch.split(per_token, tokens_of_each_trajectory)])
    means.mean().backward()  # type: ignore[no-untyped-call]
    norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
    stats = _update(_policy(), micro_batch_size, {"aggregation": "seq-mean-token-mean"}, {}).run(0, SHARED)
    assert stats.grad_norm == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize("micro_batch_size", [1, 3, 8])
def test_the_samples_of_a_trajectory_are_one_sequence_to_a_loss(micro_batch_size: int) -> None:
    algorithm = {"loss": {"name": "tests.trainer.updates:SQUARES"}}
    stats = _update(_policy(), micro_batch_size, algorithm, {}).run(0, SHARED)
    assert stats.metrics["squares"] * 18 == pytest.approx(4**2 + 2**2 + 4**2 + 1**2 + 7**2)


def test_mini_batches_are_cut_by_prompts_and_one_with_nothing_in_it_is_skipped() -> None:
    """Of two prompts with four samples each the second has nothing left."""
    half = batch_of(PROMPTS[:3], COMPLETIONS[:3], ADVANTAGES[:3], places=[0, 2, 3])
    policy, other = _policy(), _policy()
    stats = _update(policy, 8, {}, {"mini_batches": 2}).run(0, half)
    alone = _update(other, 8, {}, {}).run(0, half)
    assert stats.grad_norm == alone.grad_norm
    assert stats.loss == alone.loss
    for a, b in zip(policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


OTHERS = [0, 2, 3, 4, 7]  # the places of those that count
FILTERED = replace(BATCH, counted=torch.tensor([place in OTHERS for place in range(8)]))
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
    (policy, other), stats = (_policy(), _policy()), []
    for each, batch in ((policy, FILTERED), (other, ALONE)):
        stats.append(_update(each, micro_batch_size, algorithm, {"mini_batches": 2}).run(0, batch))
    assert stats[0].loss == pytest.approx(stats[1].loss, rel=1e-5)
    assert stats[0].grad_norm == pytest.approx(stats[1].grad_norm, rel=1e-4)
    assert stats[0].entropy == pytest.approx(stats[1].entropy, rel=1e-5)
    assert stats[0].kl == pytest.approx(stats[1].kl, rel=1e-3, abs=1e-7)
    assert stats[0].metrics == pytest.approx(stats[1].metrics, rel=1e-3, abs=1e-6)
    assert len(stats[0].logprobs) == sum(map(len, COMPLETIONS)), "its tokens are looked at all the same"
    for a, b in zip(policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_a_mini_batch_in_which_nothing_counts_makes_no_update() -> None:
    policy = _policy()
    update = _update(policy, 8, {"kl": {"coefficient": 0.1}}, {})
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
    algorithm = {"loss": {"name": "tests.trainer.test_update:SELECTS"}}
    stats = _update(_policy(), 3, algorithm, {}).run(0, FILTERED)
    count = sum(len(COMPLETIONS[place]) for place in OTHERS)
    assert stats.metrics["marked"] * count == pytest.approx(1.0)


def test_a_mini_batch_in_which_nothing_counts_is_no_part_of_a_mean() -> None:
    """Of two prompts with four samples each the second does not count."""
    half = replace(BATCH, counted=torch.tensor([place < 4 for place in range(8)]))
    alone = batch_of(PROMPTS[:4], COMPLETIONS[:4], ADVANTAGES[:4])
    stats = [_update(_policy(), 8, {}, {"mini_batches": 2}).run(0, half), _update(_policy(), 8, {}, {}).run(0, alone)]
    assert stats[0].grad_norm == pytest.approx(stats[1].grad_norm, rel=1e-4)
    assert stats[0].loss == pytest.approx(stats[1].loss, rel=1e-5)


def test_a_number_that_is_none_in_what_does_not_count_skips_no_update() -> None:
    batch = replace(FILTERED, rollout_logprobs=FILTERED.rollout_logprobs.clone())
    left_out = ~batch.counted_tokens()
    batch.rollout_logprobs[left_out] = -torch.inf
    algorithm = {"correction": {"name": "token_truncated"}}
    assert _update(_policy(), 8, algorithm, {}).run(0, batch).skipped == 0


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
        assert _update(_policy(), 8, algorithm, {}).run(0, replace(batch, advantages=found)).skipped == skipped


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
        policy = _policy()
        world = _Alone(rank=rank, size=2, device=CPU)
        stats.append(_update(policy, 8, algorithm, {}, world).run(0, one))
        moved.append(
            any(not torch.equal(a, b) for a, b in zip(policy.parameters(), _policy().parameters(), strict=True))
        )
    idle, busy = stats
    assert moved == [False, True]
    measured = {value for name, value in idle.metrics.items() if not name.endswith("_coefficient")}
    assert (idle.loss, idle.kl, idle.grad_norm, measured) == (0.0, 0.0, 0.0, {0.0})
    assert idle.metrics.keys() == busy.metrics.keys()
    assert idle.logprobs.tolist() == [0.0] * 3
    assert busy.grad_norm > 0


def test_micro_batches_change_memory_but_not_the_result() -> None:
    whole, _ = _updated(micro_batch_size=8)
    cut, _ = _updated(micro_batch_size=3)
    for a, b in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("loss", "selected"),
    [
        (
            {"name": "top_entropy", "share": 0.8},
            8 + 6,
        ),  # down to the quantile 0.2: the numbers 2 to 9 of 0 to 9, 2 to 7 of 0 to 7
        ({"name": "kl_cov", "share": 0.3}, 3 + 2),
        ({"name": "clip_cov", "share": 0.3, "covariance_low": -1000.0, "covariance_high": 1000.0}, 3 + 2),
    ],
    ids=["top_entropy", "kl_cov", "clip_cov"],
)
def test_a_loss_selects_from_whole_mini_batches_however_they_are_cut(loss: dict[str, Any], selected: int) -> None:
    """Of 10 tokens and of 8, as the two mini-batches have them; of each of 8 micro-batches it would be one at least."""
    whole_policy, cut_policy = _policy(), _policy()
    whole = _update(whole_policy, 256, {"loss": loss}, {"mini_batches": 2}).run(0, BATCH)
    cut = _update(cut_policy, 1, {"loss": loss}, {"mini_batches": 2}).run(0, BATCH)
    assert whole.metrics["selected_fraction"] * 18 == pytest.approx(selected)
    assert cut.metrics["selected_fraction"] * 18 == pytest.approx(selected)
    assert cut.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)


def test_logprobs_are_those_of_the_policy_that_sampled_also_with_several_mini_batches() -> None:
    _, one = _updated(mini_batches=1)
    _, two = _updated(mini_batches=2)
    torch.testing.assert_close(one.logprobs, two.logprobs)
    assert one.metrics["clip_fraction"] == 0.0


def test_the_divergence_is_measured_against_the_reference_and_zero_at_the_start() -> None:
    _, updated = _updated(kl_coefficient=0.1)
    assert updated.kl == pytest.approx(0.0, abs=1e-6)
    _, later = _updated(kl_coefficient=0.1, mini_batches=2)
    assert later.kl > 0.0


class _Counted(Policy):
    """A policy that counts how often it is run."""

    runs = 0

    def forward(self, *inputs: Any) -> Any:
        self.runs += 1
        return super().forward(*inputs)


def _moved() -> Policy:
    """A policy that is not the reference."""
    policy = _policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.3)
    return policy


IN_THE_REWARD = {"advantage": {"name": "rloo"}, "kl": {"coefficient": 0.1, "estimator": "k1", "place": "reward"}}


@pytest.mark.parametrize("micro_batch_size", [1, 3, 8])
def test_a_penalty_in_the_reward_is_of_both_policies_before_the_update(micro_batch_size: int) -> None:
    whole = BATCH.sequences.padded(slice(0, 8), 0, CPU)
    policy, reference = (token_logprobs(each, whole, 1.0).logprobs.detach() for each in (_moved(), _policy()))
    update = _update(_moved(), micro_batch_size, IN_THE_REWARD, {"mini_batches": 2})
    before = update.before(BATCH)
    assert before is not None
    torch.testing.assert_close(before.logprobs, policy)
    torch.testing.assert_close(before.reference_logprobs, reference)
    penalty = update.objective.penalty(before.logprobs, before.reference_logprobs)
    assert penalty is not None
    torch.testing.assert_close(penalty, 0.1 * (policy - reference).double(), check_dtype=False)


def test_a_penalty_in_the_reward_has_the_reference_run_once_and_the_divergence_measured() -> None:
    reference = _Counted(_policy().model)
    update = _update(_moved(), 3, IN_THE_REWARD, {}, reference=reference)
    before = update.before(BATCH)
    assert before is not None
    runs = reference.runs
    stats = update.run(0, BATCH, before)
    assert reference.runs == runs > 0
    assert stats.kl == pytest.approx(float((before.logprobs - before.reference_logprobs).mean()), rel=1e-5)
    assert stats.kl != 0.0


def test_a_penalty_in_the_reward_leaves_the_gradient_to_the_advantages() -> None:
    plain = _update(_moved(), 3, {}, {}).run(0, BATCH)
    penalised = _update(_moved(), 3, IN_THE_REWARD, {}).run(0, BATCH)
    assert penalised.grad_norm == pytest.approx(plain.grad_norm, rel=1e-6)


@pytest.mark.parametrize("corrected", [False, True])
def test_micro_batches_change_nothing_about_the_divergence_in_the_loss(*, corrected: bool) -> None:
    algorithm = {"kl": {"coefficient": 0.5, "corrected": corrected}}
    whole, cut = (_update(_moved(), size, algorithm, {"mini_batches": 2}).run(0, BATCH) for size in (8, 3))
    assert cut.kl == pytest.approx(whole.kl, rel=1e-4)
    assert cut.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    plain = _update(_moved(), 8, {}, {"mini_batches": 2}).run(0, BATCH)
    assert whole.grad_norm != pytest.approx(plain.grad_norm, rel=1e-3)


def test_the_entropy_bonus_raises_the_entropy() -> None:
    """The advantages are 0: the only gradient is that of the bonus."""
    indifferent = batch_of(PROMPTS, COMPLETIONS, torch.zeros(8))
    policy = _moved()
    update = _update(policy, 3, {"terms": {"entropy": {"coefficient": 1.0}}}, {"learning_rate": 1e-3})
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
    policy = _policy()
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    stats = _update(policy, 8, {}, {}).run(0, batch_of(PROMPTS, COMPLETIONS, ADVANTAGES * float("nan")))
    assert (stats.skipped, stats.grad_norm, stats.loss) == (1, 0.0, 0.0)
    assert all(torch.equal(one, other) for one, other in zip(before, policy.parameters(), strict=True))


class _TooLarge(Policy):
    """A policy that no device has room for."""

    def forward(self, *inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.27 GiB.")


@pytest.mark.parametrize(
    ("micro_batch_size", "advice"),
    [
        (
            64,
            "ran out of memory: lower runtime.training.micro_batch_size .it is 64., .* goes on from the last saved step",
        ),
        (1, r"ran out of memory: use a device with more memory, more processes .runtime.training.processes."),
    ],
)
def test_running_out_of_memory_is_told_with_the_advice_that_helps(micro_batch_size: int, advice: str) -> None:
    with pytest.raises(UserError, match=advice) as caught:
        _update(_TooLarge(_policy().model), micro_batch_size, {}, {}).run(0, BATCH)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
