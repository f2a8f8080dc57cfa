"""On-policy distillation, by hand and beside the exact gradient of the divergence; and what is refused about a teacher."""

import re
from typing import Any

import pytest
import torch
import yaml
from tests.algorithms.batches import ratios

from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.algorithms.tokens import TokenLoss
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice


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
