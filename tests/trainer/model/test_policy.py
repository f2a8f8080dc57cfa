"""Logprobs of the policy against the whole softmax of transformers, also where a family processes its logits."""

from array import array
from typing import Any

import pytest
import torch
import transformers
from tests.everyday import everyday
from tests.trainer.in_double import SIZES
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel, Qwen2Config

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import Batch, MicroBatch, TokenSequences
from dagrpo.trainer.batches.sampling_mask import TokenSupport
from dagrpo.trainer.model.head import Extras, LogitProcessing
from dagrpo.trainer.model.optimizer import adamw, take_step
from dagrpo.trainer.model.policy import Policy, longest_of_one_rope, require_known_logits, token_logprobs

CPU = torch.device("cpu")
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2": {"num_hidden_layers": 2},
    "Gemma2": {"final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "Gemma3": {"final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "Cohere": {"logit_scale": 0.25},
    "Cohere2": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 3.0},
}
SPECIAL_CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def _model(family: str) -> PreTrainedModel:
    """A tiny random one whose logits are large enough for a soft cap to bite."""
    torch.manual_seed(0)
    kind = getattr(transformers, SPECIAL_CONFIGS.get(family, f"{family}Config"))
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(kind(**(SIZES | FAMILIES[family])))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_whole_softmax_of_transformers(family: str) -> None:
    model = _model(family)
    policy = Policy(model)
    require_known_logits(policy)
    sequences = TokenSequences.of([[5, 6, 7, 8], [9, 10]], [[False, False, True, True], [False, True]])
    ours = token_logprobs(policy, sequences.padded(range(2), 0, CPU), 0.7).logprobs
    first, second = (
        torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0] / 0.7, -1) for ids in ([5, 6, 7, 8], [9, 10])
    )
    torch.testing.assert_close(ours, torch.stack([first[1, 7], first[2, 8], second[0, 10]]), atol=1e-5, rtol=1e-5)


def test_a_softmax_over_the_support_is_that_of_transformers_over_these_tokens_alone() -> None:
    """Of three trained tokens: 7 was drawn from 3, 7 and 9; 8 from itself alone; 10 from all 40."""
    model = _model("Gemma2")
    sequences = TokenSequences.of([[5, 6, 7, 8], [9, 10]], [[False, False, True, True], [False, True]])
    support = TokenSupport.of([array("i", ids) for ids in ([3, 7, 9], [8], range(40))])
    assert support is not None
    rollouts = Batch(
        sequences=sequences,
        trajectories=torch.arange(2),
        rollout_logprobs=torch.zeros(3),
        positive=torch.ones(2, dtype=torch.bool),
        support=support,
    )
    extras = Extras(entropy_gradient=True, collision=True)
    ours = token_logprobs(Policy(model), rollouts.lay_out(range(2), 0, CPU), 0.7, extras)
    first, second = (model(input_ids=torch.tensor([ids])).logits[0].double() / 0.7 for ids in ([5, 6, 7, 8], [9, 10]))
    three, whole = torch.log_softmax(first[1, [3, 7, 9]], -1), torch.log_softmax(second[0], -1)
    zero = torch.zeros(())
    torch.testing.assert_close(ours.logprobs, torch.stack([three[1], zero, whole[10]]).float(), atol=1e-5, rtol=1e-5)
    entropies = [-(each.exp() * each).sum() for each in (three, whole)]
    collisions = [(2 * each).exp().sum() for each in (three, whole)]
    for own, (first_one, last), at_one in ((ours.entropy, entropies, zero), (ours.collision, collisions, zero + 1)):
        torch.testing.assert_close(own, torch.stack([first_one, at_one, last]).float(), atol=1e-5, rtol=1e-5)
    (ours.logprobs.sum() + ours.entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    second_part = rollouts.lay_out(range(1, 2), 0, CPU)
    torch.testing.assert_close(
        token_logprobs(Policy(model), second_part, 0.7).logprobs, ours.logprobs[2:], atol=1e-5, rtol=1e-5
    )


class _Halved(transformers.Qwen2ForCausalLM):  # type: ignore[misc]
    """A family of tomorrow that halves its logits without a figure in its config.json."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        output = super().forward(*inputs, **options)
        output.logits = output.logits / 2
        return output


def test_a_model_that_processes_its_logits_in_an_unknown_way_is_refused_by_name() -> None:
    torch.manual_seed(0)
    policy = Policy(_Halved(transformers.Qwen2Config(**SIZES)).eval())
    with pytest.raises(UserError, match=r"_Halved \(qwen2\) processes its logits .* choose another model"):
        require_known_logits(policy)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_logprobs_and_gradient_are_those_of_a_copy_of_the_weights_in_bfloat16(family: str) -> None:
    """The gradient arrives at the float32 weights, and that of two micro-batches is added up there."""
    master, copy = _model(family), _model(family)
    for (
        parameter
    ) in copy.parameters():  # not the frequencies of its positions, which transformers keeps in float32, too
        parameter.data = parameter.data.to(torch.bfloat16)
    policy, other = Policy(master, dtype=torch.bfloat16), Policy(copy)
    sequences = TokenSequences.of([[5, 6, 7, 8], [9, 10]], [[False, False, True, True], [False, True]])
    sums = {name: torch.zeros_like(weight) for name, weight in policy.named_parameters()}
    for row in range(2):
        padded = sequences.padded([row], 0, CPU)
        ours, theirs = token_logprobs(policy, padded, 0.7).logprobs, token_logprobs(other, padded, 0.7).logprobs
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)
        ours.sum().backward()  # type: ignore[no-untyped-call]
        theirs.sum().backward()  # type: ignore[no-untyped-call]
        for name, weight in other.named_parameters():
            if weight.grad is not None:
                sums[name] += weight.grad.float()
        other.zero_grad()
    for name, weight in policy.named_parameters():
        assert weight.dtype == torch.float32
        if weight.grad is not None:
            torch.testing.assert_close(weight.grad, sums[name], rtol=1e-6, atol=1e-6)


def test_a_policy_in_bfloat16_has_its_weights_and_its_optimizer_in_float32() -> None:
    policy = Policy(_model("Qwen2"), dtype=torch.bfloat16)
    optimizer = adamw(policy.parameters(), 0.0)
    sequences = TokenSequences.of([[5, 6, 7, 8]], [[False, False, True, True]])
    first = token_logprobs(policy, sequences.padded([0], 0, CPU), 1.0).logprobs.sum()
    (-first).backward()  # type: ignore[no-untyped-call]
    take_step(optimizer, 1e-5)  # less than bfloat16 can tell from nothing
    kept = [value for each in optimizer.state.values() for value in each.values()]
    assert {value.dtype for value in [*kept, *policy.parameters()]} == {torch.float32}
    assert any(
        (one != other).any() for one, other in zip(policy.parameters(), _model("Qwen2").parameters(), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", everyday(["Qwen2", "Gemma2", "Granite"], FAMILIES))
def test_a_head_in_float32_rounds_nothing_between_hidden_states_and_logits(family: str, dtype: torch.dtype) -> None:
    """Hidden states and weights are rounded as before; their product, a soft cap and a scale are in float32."""
    policy = Policy(_model(family), dtype=dtype, float32_head=True)
    sequences = TokenSequences.of([[5, 6, 7, 8]], [[False, False, True, True]])
    padded = sequences.padded([0], 0, CPU)
    hidden: list[torch.Tensor] = []
    hook = policy.model.base_model.register_forward_hook(lambda module, given, made: hidden.append(made[0]))
    ours = token_logprobs(policy, padded, 0.7).logprobs
    hook.remove()
    weight = policy.model.get_output_embeddings().weight.to(dtype).double()
    assert hidden[0].dtype == dtype
    logits = LogitProcessing.of(policy.model).apply(hidden[0][0, 1:3].double() @ weight.T) / 0.7
    torch.testing.assert_close(ours.double(), logits.log_softmax(-1)[[0, 1], [7, 8]], rtol=1e-5, atol=1e-5)
    rounded = token_logprobs(Policy(policy.model, dtype=dtype), padded, 0.7).logprobs
    assert not torch.equal(rounded, ours)
    chunks = token_logprobs(policy, padded, 0.7, head_chunk_tokens=1).logprobs
    torch.testing.assert_close(chunks, ours, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_head_in_float32_learns_what_its_model_in_float32_does(chunk: int | None) -> None:
    gradients = []
    for dtype, float32_head in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, True)):
        policy = Policy(_model("Qwen2"), dtype=dtype, float32_head=float32_head)
        sequences = TokenSequences.of([[5, 6, 7, 8]], [[False, False, True, True]])
        logprobs = token_logprobs(policy, sequences.padded([0], 0, CPU), 1.0, head_chunk_tokens=chunk).logprobs
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
        gradients.append({name: weight.grad for name, weight in policy.named_parameters() if weight.grad is not None})
    plain, float32, bfloat16 = gradients
    assert all(torch.equal(plain[name], gradient) for name, gradient in float32.items())
    one, other = (torch.cat([each[name].flatten() for name in plain]) for each in (plain, bfloat16))
    assert torch.nn.functional.cosine_similarity(one, other, dim=0) > 0.99


LIMIT = 16
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def _phi3() -> Any:
    longrope = LONGROPE | {"original_max_position_embeddings": LIMIT}
    return Phi3Config(**SIZES, rope_parameters=longrope, original_max_position_embeddings=LIMIT)


def test_the_limit_is_that_of_the_configuration() -> None:
    assert longest_of_one_rope(_phi3()) == LIMIT
    assert longest_of_one_rope(Qwen2Config(**SIZES | {"max_position_embeddings": 24}, rope_parameters=DYNAMIC)) == 24
    assert longest_of_one_rope(Qwen2Config(**SIZES)) is None


@pytest.mark.parametrize("layout", ["padded", "packed", "packed with shared prompts"])
def test_a_longer_sequence_is_refused_in_any_layout(layout: str) -> None:
    policy = Policy(Phi3ForCausalLM(_phi3()).eval())
    policy.take_packed()
    fits, share = _batch(LIMIT - 9, layout), _batch(LIMIT - 8, layout)
    assert len(token_logprobs(policy, fits, 1.0).logprobs)
    with pytest.raises(UserError, match=f"A sequence has 17 tokens, and beyond {LIMIT} the rotary positions of this"):
        token_logprobs(policy, share, 1.0)


def _batch(written: int, layout: str) -> MicroBatch:
    """Two samples of a prompt of nine tokens."""
    ids = [[*range(1, 10), *[sample] * written] for sample in (3, 4)]
    sequences = TokenSequences.of(ids, [[False] * 9 + [True] * written] * 2)
    if layout == "padded":
        return sequences.padded(range(2), 0, CPU)
    return sequences.packed(range(2), CPU, share_prompts=layout.endswith("shared prompts"))
