"""What is minimised, computed by hand on tokens; and that it does not depend on how a mini-batch is cut."""

from dataclasses import fields, replace
from math import log
from typing import Any, get_args

import pytest
import torch
from tests.algorithms.batches import ratios
from torch import Tensor

from dagrpo.algorithms.aggregation import Lengths
from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.divergence import Estimator
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.trainer.update.objective import Objective

# An advantage with which the divergence may be in the loss or in the reward.
NO_CORRECTION: dict[str, Any] = {"advantage": {"name": "rloo"}, "correction": {"name": "none"}}


def objective(coefficients: dict[str, Any] | None = None, **algorithm: Any) -> Objective:
    return Objective(Algorithm.model_validate(NO_CORRECTION | algorithm), 4, coefficients)


def lengths_of(batch: TokenBatch, *, positive: bool = False) -> Lengths:
    """Those of sequences that answer one prompt for every two; 0 where only right ones count."""
    counted = batch.positive if positive else torch.ones_like(batch.positive)
    tokens = torch.bincount(batch.sequence, counted.double(), batch.sequences).int().tolist()
    return Lengths(tokens=tokens, prompts=[row // 2 for row in range(batch.sequences)])


def loss_of(objective: Objective, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    return objective.loss(batch, lengths_of(batch), lengths_of(batch, positive=True), 0, counts=True)


def gradient_of(objective: Objective, batch: TokenBatch) -> list[float]:
    (gradient,) = torch.autograd.grad(loss_of(objective, batch)[0], batch.logprobs)
    return gradient.tolist()


def against_reference(policy: float, old: float, reference: float) -> TokenBatch:
    """One token with an advantage of 0, by its probabilities."""
    one = torch.ones(1, dtype=torch.float64)
    return ratios(
        [[1.0]],
        [0.0],
        logprobs=(one * policy).log().requires_grad_(),
        old_logprobs=(one * old).log(),
        rollout_logprobs=(one * old).log(),
        reference_logprobs=(one * reference).log(),
    )


def test_the_divergence_in_the_loss_is_the_estimate_times_its_coefficient() -> None:
    """d = log 2: k3 is 1/2 - 1 + log 2, its derivative 1 - 1/2."""
    batch = against_reference(policy=1 / 2, old=1 / 4, reference=1 / 4)
    plain = objective(kl={"coefficient": 0.5})
    loss, measured = loss_of(plain, batch)
    assert float(loss.detach()) == pytest.approx(0.5 * (log(2) - 1 / 2))
    assert float(measured["kl"]) == pytest.approx(log(2) - 1 / 2)
    assert gradient_of(plain, batch) == pytest.approx([0.5 * (1 - 1 / 2)])


def test_the_corrected_divergence_is_the_estimate_times_the_ratio_and_its_gradient_is_the_ratio_times_the_distance() -> (
    None
):
    """The ratio is 2: 2 (1/2 - 1 + log 2); differentiated by the logprob, 2 (1/2 - 1 + log 2) + 2 (1 - 1/2) = 2 log 2."""
    batch = against_reference(policy=1 / 2, old=1 / 4, reference=1 / 4)
    corrected = objective(kl={"coefficient": 0.5, "corrected": True})
    loss, measured = loss_of(corrected, batch)
    assert float(loss.detach()) == pytest.approx(0.5 * 2 * (log(2) - 1 / 2))
    assert float(measured["kl"]) == pytest.approx(log(2) - 1 / 2)  # what is reported is the divergence itself
    assert gradient_of(corrected, batch) == pytest.approx([0.5 * 2 * log(2)])


@pytest.mark.parametrize(("is_corrected", "is_exact"), [(True, True), (False, False)])
def test_over_all_tokens_that_another_policy_samples_the_corrected_gradient_is_that_of_the_divergence(
    *, is_corrected: bool, is_exact: bool
) -> None:
    """A vocabulary of three: KL(policy, reference) differentiated by torch, and the mean of the estimate's gradient."""
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    policy = torch.log_softmax(logits, dim=0)
    old, reference = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], dtype=torch.float64).log()
    (exact,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    added = objective(kl={"coefficient": 1.0, "corrected": is_corrected})
    batch = ratios(
        [[1.0]] * 3, [0.0] * 3, logprobs=policy, old_logprobs=old, rollout_logprobs=old, reference_logprobs=reference
    )
    # Each of the three counts by how often the old policy samples it, in place of a third.
    mean = sum(
        probability * loss_of(added, _sequences(batch, token, token + 1))[0]
        for token, probability in enumerate(old.exp())
    )
    (estimated,) = torch.autograd.grad(mean, logits)
    assert torch.allclose(estimated, exact, atol=1e-12) is is_exact


# By the logits of p = (0.7, 0.2, 0.1), of divergences between it and the reference q = (0.5, 0.3, 0.2).
FORWARD = [0.175945, -0.098118, -0.077827]  # KL(p, q): p (log(p / q) - 0.085123)
REVERSE = [0.2, -0.1, -0.1]  # KL(q, p): p - q
VARIATION = [0.42, -0.28, -0.14]  # the sum of |p - q|: p (s - 0.4), s = (1, -1, -1) the signs
EXPECTED_GRADIENT = {
    ("k1", True): FORWARD,
    ("k2", False): FORWARD,
    ("k3", True): FORWARD,
    ("k1+", False): FORWARD,
    ("abs+", False): FORWARD,
    ("k3+", False): FORWARD,
    ("k3", False): REVERSE,
    ("abs", False): VARIATION,
}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_on_average_a_divergence_in_the_loss_has_the_gradient_of_a_divergence(
    estimator: Estimator, *, corrected: bool
) -> None:
    """Over all tokens by their probabilities, at the first update; what is not in the table is refused."""
    kl = {"coefficient": 1.0, "estimator": estimator, "corrected": corrected}
    if (estimator, corrected) not in EXPECTED_GRADIENT:
        with pytest.raises(ValueError, match=r"algorithm\.kl\.estimator"):
            objective(kl=kl)
        return
    added = objective(kl=kl)
    probabilities, reference = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]], dtype=torch.float64)
    logits = probabilities.log().requires_grad_()
    policy = torch.log_softmax(logits, dim=0)
    batch = ratios(
        [[1.0]] * 3,
        [0.0] * 3,
        logprobs=policy,
        old_logprobs=policy.detach(),
        rollout_logprobs=policy.detach(),
        reference_logprobs=reference.log(),
    )
    losses = [loss_of(added, _sequences(batch, token, token + 1))[0] for token in range(3)]
    (gradient,) = torch.autograd.grad((probabilities * torch.stack(losses)).sum(), logits)
    assert gradient.tolist() == pytest.approx(EXPECTED_GRADIENT[estimator, corrected], abs=1e-6)


def test_a_divergence_in_the_reward_is_measured_and_is_no_part_of_the_loss() -> None:
    batch = against_reference(policy=1 / 2, old=1 / 4, reference=1 / 4)
    penalised = objective(kl={"coefficient": 0.5, "place": "reward"})
    loss, measured = loss_of(penalised, batch)
    assert float(loss.detach()) == 0.0
    assert gradient_of(penalised, batch) == [0.0]
    assert float(measured["kl"]) == pytest.approx(log(2) - 1 / 2)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", log(2)), ("abs", log(2)), ("k2", log(2) ** 2 / 2), ("k3", log(2) - 1 / 2)],
)
def test_the_penalty_of_a_token_is_the_estimate_times_the_coefficient(estimator: str, expected: float) -> None:
    logprobs, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    penalised = objective(kl={"coefficient": 0.1, "place": "reward", "estimator": estimator})
    penalty = penalised.penalty(logprobs, reference)
    assert penalty is not None
    assert penalty.dtype == torch.float64
    assert penalty.tolist() == pytest.approx([0.1 * expected], rel=1e-6)
    assert penalised.looks_ahead


@pytest.mark.parametrize("kl", [{}, {"coefficient": 0.1}, {"place": "reward"}])
def test_without_a_coefficient_or_in_the_loss_there_is_no_penalty(kl: dict[str, Any]) -> None:
    assert objective(kl=kl).penalty(torch.zeros(1), torch.zeros(1)) is None
    assert not objective(kl=kl).looks_ahead


PER_TOKEN = [
    each.name
    for each in fields(TokenBatch)
    if each.name not in {"sequence", "sequences", "selected", "teacher_logprobs"}
]


def _tokens(batch: TokenBatch, chosen: Tensor, sequence: Tensor, sequences: int) -> TokenBatch:
    values = {name: getattr(batch, name)[chosen] for name in PER_TOKEN}
    return replace(batch, **values, sequence=sequence, sequences=sequences)


def _sequences(batch: TokenBatch, first: int, last: int) -> TokenBatch:
    """The sequences from `first` to before `last`, as a micro-batch."""
    chosen = (batch.sequence >= first) & (batch.sequence < last)
    return _tokens(batch, chosen, batch.sequence[chosen] - first, last - first)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", (1 + 2 + 3) / 3),  # of the three right tokens, whatever the two wrong ones are
        ("seq-mean-token-mean", ((1 + 2) / 2 + 3) / 2),
        ("seq-mean-token-sum", ((1 + 2) + 3) / 2),
        ("prompt-mean", ((1 + 2) / 2 + 3) / 2),
        ("constant", ((1 + 2) + 3) / (2 * 4)),
    ],
)
def test_the_likelihood_of_right_answers_is_added_up_over_them_alone(aggregation: str, expected: float) -> None:
    """Right sequences with logprobs (-1, -2) and (-3), a wrong one of two tokens; the advantages are 0."""
    batch = ratios(
        [[1.0, 1.0], [1.0, 1.0], [1.0]],
        [0.0] * 3,
        logprobs=torch.tensor([-1.0, -2.0, -7.0, -9.0, -3.0], dtype=torch.float64).requires_grad_(),
        positive=torch.tensor([True, True, False, False, True]),
    )
    added = objective(terms={"positive_nll": {"coefficient": 0.5}}, aggregation=aggregation)
    assert float(loss_of(added, batch)[0].detach()) == pytest.approx(0.5 * expected)
    assert gradient_of(added, batch)[2:4] == [0.0, 0.0]


def test_a_mini_batch_without_a_right_answer_has_no_likelihood_term() -> None:
    batch = ratios([[1.0, 1.0], [1.0]], [0.0, 0.0], positive=torch.zeros(3, dtype=torch.bool))
    added = objective(terms={"positive_nll": {"coefficient": 0.5}})
    assert float(loss_of(added, batch)[0].detach()) == 0.0


def test_masked_mistakes_have_no_gradient_of_the_policy_and_are_counted() -> None:
    """Ratio 1/2: 0.69 nats away. The mistake is left out, the right answer and the near mistake are not."""
    batch = ratios([[0.5, 0.5], [0.5], [1.0]], [-1.0, 1.0, -1.0])
    masked = objective(off_policy_mask=0.5, loss={"name": "ppo_clip", "clip_low": 0.9, "clip_high": 0.9})
    assert gradient_of(masked, batch) == pytest.approx([0.0, 0.0, -0.5 / 4, 1 / 4])
    assert int(loss_of(masked, batch)[1]["off_policy_masked_fraction"]) == 2
    assert "off_policy_masked_fraction" not in loss_of(objective(), batch)[1]


def test_coefficients_go_on_from_where_they_were_saved() -> None:
    terms = {
        "adaptive_entropy": {"coefficient": 0.01, "target": 0.5, "delta": 0.01},
        "positive_nll": {"coefficient": 0.1},
    }
    one = objective(terms=terms)
    used = [one.adapt_coefficients(entropy) for entropy in (0.4, 0.6)]
    assert used[0] == {"adaptive_entropy_coefficient": 0.01, "positive_nll_coefficient": 0.1}
    assert used[1] == {"adaptive_entropy_coefficient": 0.02, "positive_nll_coefficient": 0.1}
    saved = {name: list(each) for name, each in one.coefficients.items()}  # as JSON has it
    assert saved == {"adaptive_entropy": [0.0, 0.01], "positive_nll": [0.1, 0.1]}
    resumed = objective(saved, terms=terms)
    assert [resumed.adapt_coefficients(0.4), resumed.adapt_coefficients(0.4)] == [
        one.adapt_coefficients(0.4),
        one.adapt_coefficients(0.4),
    ]


@pytest.mark.parametrize("entropy", [float("nan"), float("inf")])
def test_a_step_whose_entropy_is_no_number_changes_no_coefficient(entropy: float) -> None:
    one = objective(terms={"adaptive_entropy": {"coefficient": 0.01}})
    assert one.adapt_coefficients(entropy) == one.adapt_coefficients(entropy) == {"adaptive_entropy_coefficient": 0.01}


def test_the_applied_coefficient_is_what_multiplies_the_term() -> None:
    terms = {"adaptive_entropy": {"coefficient": 0.01}}
    saved = {"adaptive_entropy": [0.25, 0.5]}
    batch = ratios([[1.0]], [0.0], entropy=torch.tensor([2.0], dtype=torch.float64))
    assert float(loss_of(objective(saved, terms=terms), batch)[0].detach()) == pytest.approx(-0.25 * 2.0)
