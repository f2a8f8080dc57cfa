"""Terms beside the loss and distillation, computed by hand and beside exact gradients; what is refused about a teacher."""

import re
from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError
from tests.algorithms.batches import ratios

from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.algorithms.terms import TERMS, Coefficient
from dagrpo.algorithms.terms.entropies import AdaptiveEntropy, adapted
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice

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


def _config(**keys: Any) -> Choice:
    config: Choice = LOSSES.get("on_policy_distillation").config.model_validate(
        {"name": "on_policy_distillation", **keys}
    )
    return config


def _loss(token_ratios: list[float], teacher: list[float], **keys: Any) -> TokenLoss:
    """Tokens with these ratios to an old logprob of -1, as a teacher finds them. The advantage of 5 is nobody's business."""
    return loss_of(ratios([token_ratios], [5.0], teacher_logprobs=torch.tensor(teacher)), _config(**keys))


def test_a_token_is_worth_what_the_teacher_finds_it_likelier() -> None:
    """Old logprobs are -1. The teacher's -1.5: A = -0.5, loss 0.5 rho; the teacher's 0: A = 1, loss -rho."""
    assert _loss([1.0, 2.0], [-1.5, 0.0]).per_token.tolist() == pytest.approx([0.5, -2.0])


def test_a_token_does_not_count_once_its_probability_has_fallen_too_far() -> None:
    """Old probability 1/e = 0.368: ratio 0.4 leaves 0.147, 0.221 less; ratio 0.5 leaves 0.184, 0.184 less."""
    result = _loss([0.4, 0.5], [0.0, 0.0])
    assert result.per_token.tolist() == pytest.approx([0.0, -0.5])
    assert int(result.metrics["clip_fraction"]) == 1
    everywhere = _loss([0.4, 0.5], [0.0, 0.0], trust_region=None)
    assert everywhere.per_token.tolist() == pytest.approx([-0.4, -0.5])
    assert not everywhere.metrics


def test_a_token_is_worth_no_more_than_the_largest_value() -> None:
    """The teacher's -16: A = -15, or -10."""
    assert _loss([1.0, 1.0], [-16.0, -0.5], largest=10.0).per_token.tolist() == pytest.approx([10.0, -0.5])


def test_on_policy_its_expected_gradient_is_that_of_the_reverse_divergence() -> None:
    """Every token of a vocabulary of four, weighed by its probability, by the logits that it is drawn from."""
    teacher = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    logits = torch.tensor([0.5, -1.0, 0.0, 1.5], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, dim=-1)
    probabilities = logprobs.exp()
    divergence = (probabilities * (logprobs - teacher)).sum()
    (exact,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    batch = ratios([[1.0] * 4], [0.0], logprobs=logprobs, old_logprobs=logprobs.detach(), teacher_logprobs=teacher)
    expected = (probabilities.detach() * loss_of(batch, _config()).per_token).sum()
    (sampled,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(sampled, exact, atol=1e-12, rtol=0)


DISTILS = "loss: {name: on_policy_distillation}, teacher: {source: initial, prompt: with_solution}"
REFUSED = {  # parameters -> words of the refusal
    "algorithm: {loss: {name: on_policy_distillation}}": "on_policy_distillation learns from a teacher, but",
    "algorithm: {terms: {distillation: {coefficient: 0.5}}}": "terms.distillation learns from a teacher, but",
    "algorithm: {loss: {name: on_policy_distillation}, teacher: {source: initial}}": (
        "is the policy itself, so it would learn nothing but rounding errors"
    ),
    f"algorithm: {{{DISTILS}, kl: {{coefficient: 0.1, place: reward}}}}": "so algorithm.kl would have no effect in the reward",
    f"algorithm: {{{DISTILS}, off_policy_mask: 0.5}}": "but algorithm.off_policy_mask chooses tokens by their",
    f"algorithm: {{{DISTILS}, terms: {{distillation: {{coefficient: 0.1}}}}}}": "differ only in their factors",
    "algorithm: {teacher: {source: initial}}": "but nothing learns from a teacher: set it to none, take",
    "algorithm: {teacher: {source: initial}, terms: {distillation: {}}}": "but nothing learns from a teacher",
    f"{{algorithm: {{{DISTILS}}}, rollout: {{temperature: 0.7}}}}": "rollout.temperature is 0.7, but an engine returns",
    f"{{algorithm: {{{DISTILS}}}, rollout: {{top_p: 0.9, top_k: 50}}}}": "rollout.top_k is 50 and rollout.top_p 0.9",
    f"{{algorithm: {{{DISTILS}}}, rollout: {{top_k: 50}}}}": "over the whole vocabulary alone",
    "algorithm: {teacher: {source: folder}}": "algorithm.teacher.folder is null: give it",
    "algorithm: {teacher: {source: hub, repository: a/b}}": "algorithm.teacher.revision is null: give",
    "algorithm: {teacher: {source: hub, repository: a/b, revision: main}}": "revision is 'main': give the full commit",
    "algorithm: {teacher: {folder: x}}": "source is none and algorithm.teacher.folder is given: set it to",
    "algorithm: {teacher: {solution: Look it up.}}": "algorithm.teacher.solution lacks {solution}",
    "algorithm: {loss: {name: on_policy_distillation}, teacher: {source: folder, folder: results/arithmetic_tiny/runs/seed_0/sft}}": (
        "which is an output of this experiment"
    ),
    "model: {name: teacher}": "model.name is teacher, the folder of algorithm.teacher",
    f"{{algorithm: {{{DISTILS}}}, runtime: {{teacher: {{servers: ['http://127.0.0.1:30000']}}}}}}": (
        "rollout.deterministic is true but runtime.teacher.servers"
    ),
    "{rollout: {deterministic: false}, runtime: {teacher: {servers: ['http://h:1']}, engine: {servers: ['http://h:1']}}}": (
        "both name http://h:1, which holds one model"
    ),
    f"{{algorithm: {{{DISTILS}}}, rollout: {{agent: {{name: program, command: ['true']}}}}}}": "are its own",
}


@pytest.mark.parametrize("values", REFUSED)
def test_what_cannot_work_is_refused_in_one_sentence(values: str) -> None:
    with pytest.raises(UserError, match=re.escape(REFUSED[values])) as refused:
        parse(yaml.safe_load(values))
    assert len(str(refused.value)) < 500


def test_a_teacher_is_fine_where_a_loss_or_a_term_learns_from_it() -> None:
    assert parse({"algorithm": yaml.safe_load(f"{{{DISTILS}}}")}).algorithm.distils == [
        "algorithm.loss on_policy_distillation"
    ]
    terms = {"terms": {"distillation": {"coefficient": 0.5}}, "teacher": {"source": "initial"}}
    assert parse({"algorithm": terms}).algorithm.distils == ["algorithm.terms.distillation"]
