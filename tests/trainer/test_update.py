"""The update on a tiny random model: its gradient is the policy gradient, however the work is cut."""

from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.distributed import single_process
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.training import Training
from dagrpo.trainer.packing import TokenSequences, pad
from dagrpo.trainer.optimizer import adamw, warmed_up
from dagrpo.trainer.policy import Policy, token_logprobs
from dagrpo.trainer.update import PolicyUpdate

COMPLETIONS = [(3, 4, 5), (6,), (7, 8), (9, 3, 3, 1), (4,), (5, 6), (7, 7, 7), (8, 1)]


def _policy() -> Policy:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    return Policy(Qwen2ForCausalLM(config).eval())


SEQUENCES = TokenSequences(prompts=[((1, 2), (2, 3, 4))[n // 4] for n in range(8)], completions=COMPLETIONS)
ADVANTAGES = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 0.0, -1.0, -1.0])


def _updated(kl_coefficient: float = 0.0, micro_batch_size: int = 256, **training: Any) -> tuple[Policy, Any]:
    policy, reference = _policy(), _policy().requires_grad_(False)
    values = {"steps": 1, "prompts_per_step": 2, "samples_per_prompt": 4, "learning_rate": 1e-2, **training}
    settings = Training.model_validate(values)
    update = PolicyUpdate(
        policy=policy,
        reference=reference if kl_coefficient else None,
        optimizer=adamw(policy.parameters(), 1e-2, 0.0),
        algorithm=Algorithm.model_validate({"kl_coefficient": kl_coefficient}),
        training=settings,
        micro_batch_size=micro_batch_size,
        temperature=1.0,
        pad_token_id=0,
        max_new_tokens=16,
        world=single_process(),
    )
    return policy, update.run(0, SEQUENCES, ADVANTAGES)


def test_the_first_update_is_the_policy_gradient_with_the_mean_over_tokens() -> None:
    policy = _policy()
    batch = pad(SEQUENCES.prompts, COMPLETIONS, 0)
    loss = -(token_logprobs(policy, batch, 1.0).logprobs * ADVANTAGES[batch.rows]).sum() / sum(map(len, COMPLETIONS))
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
    _, updated = _updated()
    assert updated.grad_norm == pytest.approx(float(norm), rel=1e-4)


def test_micro_batches_change_memory_but_not_the_result() -> None:
    whole, _ = _updated(micro_batch_size=8)
    cut, _ = _updated(micro_batch_size=3)
    for a, b in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_logprobs_are_those_of_the_policy_that_sampled_also_with_several_mini_batches() -> None:
    _, one = _updated(mini_batches=1)
    _, two = _updated(mini_batches=2)
    torch.testing.assert_close(one.logprobs, two.logprobs)
    assert one.clip_fraction == 0.0


def test_logprobs_agree_with_the_whole_softmax_of_transformers() -> None:
    policy = _policy()
    batch = pad([(1, 2)], [(3, 4)], 0)
    expected = torch.log_softmax(policy.model(input_ids=batch.input_ids).logits[0] / 0.7, dim=-1)
    torch.testing.assert_close(
        token_logprobs(policy, batch, 0.7).logprobs, torch.stack([expected[1, 3], expected[2, 4]])
    )


def test_the_divergence_is_measured_against_the_reference_and_zero_at_the_start() -> None:
    _, updated = _updated(kl_coefficient=0.1)
    assert updated.kl == pytest.approx(0.0, abs=1e-6)
    _, later = _updated(kl_coefficient=0.1, mini_batches=2)
    assert later.kl > 0.0


def test_the_learning_rate_rises_linearly_and_stays() -> None:
    assert [warmed_up(1.0, update, 4) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmed_up(0.5, 0, 0) == 0.5


def test_a_gradient_that_is_not_finite_ends_the_run_with_a_sentence() -> None:
    policy = _policy()
    update = PolicyUpdate(
        policy=policy, reference=None, optimizer=adamw(policy.parameters(), 1e-2, 0.0), algorithm=Algorithm.model_validate({}),
        training=Training.model_validate({"prompts_per_step": 2, "samples_per_prompt": 4}), micro_batch_size=8, temperature=1.0,
        pad_token_id=0,
        max_new_tokens=16,
        world=single_process(),
    )  # fmt: skip
    with pytest.raises(ValueError, match="the gradient's norm is nan"):
        update.run(0, SEQUENCES, ADVANTAGES * float("nan"))
