"""Terms beside the loss, computed by hand."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.algorithms.batches import ratios

from dagrpo.algorithms.terms import TERMS, Coefficient
from dagrpo.algorithms.terms.entropies import AdaptiveEntropy, adapted
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError

# Two right tokens, then a wrong one; the engine found them all e times less likely than the policy that sampled. A teacher
# finds the first half a nat likelier, and the last two nats less likely.
BATCH = ratios(
    [[2.0, 1.0], [0.5]],
    [1.0, -1.0],
    rollout_logprobs=torch.full((3,), -2.0),
    entropy=torch.tensor([0.3, 0.1, 0.6]),
    teacher_logprobs=torch.tensor([-0.5, -1.0, -3.0]),
)
SKYWORK = AdaptiveEntropy(coefficient=0.005)


def _per_token(name: str, batch: TokenBatch) -> torch.Tensor:
    term = TERMS.get(name)
    return term.function(batch, term.config(coefficient=1.0)).per_token


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("entropy", [-0.3, -0.1, -0.6]),
        ("adaptive_entropy", [-0.3, -0.1, -0.6]),
        ("positive_nll", [1 - log(2), 1.0, 0.0]),
        ("squared_log_ratio", [(1 + log(2)) ** 2, 1.0, (1 - log(2)) ** 2]),
        ("distillation", [-0.5 * 2.0, 0.0, 2.0 * 0.5]),
    ],
)
def test_terms_have_the_values_computed_by_hand(name: str, expected: list[float]) -> None:
    assert _per_token(name, BATCH).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["entropy", "adaptive_entropy"])
def test_the_gradient_of_the_bonus_goes_through_the_entropy(name: str) -> None:
    """H of softmax(z) has the gradient -p (log p + H) by z; the bonus has its negative."""

    def of_logits(logits: torch.Tensor) -> torch.Tensor:
        logs = torch.log_softmax(logits, dim=-1)
        return _per_token(name, replace(BATCH, entropy=-(logs.exp() * logs).sum(dim=-1))).sum()

    logits = torch.tensor([[0.2, -1.0, 0.5], [0.0, 0.0, 0.0], [3.0, 1.0, -2.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(of_logits, (logits.requires_grad_(),))
    (gradient,) = torch.autograd.grad(of_logits(logits), logits)
    logs = torch.log_softmax(logits.detach(), dim=-1)
    entropy = -(logs.exp() * logs).sum(dim=-1, keepdim=True)
    torch.testing.assert_close(gradient, logs.exp() * (logs + entropy))
    assert TERMS.get(name).needs_entropy


def test_a_token_is_worth_no_more_to_a_teacher_than_the_largest_value() -> None:
    """The first by 0.5, as it is; the last by -2, which counts as -0.75: 0.75 times its ratio of 0.5."""
    term = TERMS.get("distillation")
    result = term.function(BATCH, term.config(coefficient=1.0, largest=0.75))
    assert result.per_token.tolist() == pytest.approx([-1.0, 0.0, 0.375])


def test_the_coefficient_follows_the_entropy_by_steps_and_is_applied_below_the_target_alone() -> None:
    """Entropies against a target of 0.2: below, at it, above twice, below."""
    seen, kept = [], SKYWORK.coefficient
    for entropy in (0.1, 0.2, 0.3, 0.3, 0.1):
        coefficient = adapted(kept, entropy, SKYWORK)
        seen.append([round(value, 12) for value in coefficient])
        kept = coefficient.basis
    assert seen == [[0.01, 0.01], [0.015, 0.015], [0.0, 0.01], [0.0, 0.005], [0.01, 0.01]]
    assert adapted(0.003, 0.3, SKYWORK) == Coefficient(applied=0.0, basis=0.0)
    assert adapted(1.0, 0.1, SKYWORK) == Coefficient(applied=1.0, basis=1.0)


@pytest.mark.parametrize("name", TERMS.own_names())
def test_every_coefficient_is_bounded_and_off_by_default(name: str) -> None:
    config = TERMS.get(name).config
    assert config().coefficient == 0
    for value in (1e6, -1e6):
        with pytest.raises(ValidationError, match="coefficient"):
            config(coefficient=value)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (
            {"adaptive_entropy": {"coefficient": 0.5, "maximum": 0.1}},
            r"\(0.5\) is above its maximum \(0.1\): lower the one",
        ),
        (
            {"adaptive_entropy": {"coefficient": 0.01}, "entropy": {"coefficient": 0.01}},
            r"adaptive_entropy and algorithm\.terms\.entropy differ only in their factors",
        ),
    ],
)
def test_terms_that_cannot_work_are_refused(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse({"algorithm": {"terms": terms}})
    parse({"algorithm": {"terms": terms | {"adaptive_entropy": {"coefficient": 0.0}}}})
