"""The head in chunks: the numbers and gradients of all tokens at once, and never the logits of more than a chunk."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trainer.small_updates import small_policy, small_update
from tests.trainer.updates import batch_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.batches.sampling_mask import PaddedSupport
from dagrpo.trainer.model.head import NEVER, Extras, LogitProcessing, Read, Reading, read_of_head
from dagrpo.trainer.model.policy import Policy, TokenLogprobs, token_logprobs

CPU = torch.device("cpu")
WIDTH, VOCABULARY = 5, 11
EVERYTHING = Extras(entropy_gradient=True, collision=True)
ALL_PROCESSING = LogitProcessing(caps=(3.0,), factors=(0.7,), divisors=(1.3,))


def _inputs(tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight and bias, which need gradients."""
    drawn = torch.Generator().manual_seed(tokens)
    shapes = [(tokens, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,)]
    hidden, weight, bias = (torch.randn(shape, generator=drawn, dtype=torch.float64).to(dtype) for shape in shapes)
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def _reading(tokens: int, *, supported: bool = False, **options: Any) -> Reading:
    """Targets 0, 1, 2, ...; the support of a token is itself and the one, two or three after it."""
    targets = torch.arange(tokens) % VOCABULARY
    pairs = [(row, (row + step) % VOCABULARY) for row in range(tokens) for step in range(2 + row % 3)]
    rows, ids = torch.tensor(pairs).T.contiguous()
    support = PaddedSupport(rows=rows, token_ids=ids) if supported else None
    return Reading(targets=targets, temperature=0.7, support=support, **options)


def _at_once(hidden: Tensor, weight: Tensor, bias: Tensor | None, reading: Reading) -> Read:
    """All logits, and autograd: what the closed forms in chunks are compared with."""
    logits = reading.processing.apply(torch.nn.functional.linear(hidden, weight, bias)) / reading.temperature
    if reading.support is not None:
        left = torch.zeros_like(logits, dtype=torch.bool)
        left[reading.support.rows, reading.support.token_ids] = True
        logits = logits.masked_fill(~left, NEVER)
    log_softmax = torch.log_softmax(logits, dim=-1)
    logprobs = log_softmax.gather(1, reading.targets[:, None])[:, 0]
    entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
    collision = (2 * log_softmax.detach()).exp().sum(dim=-1)
    extras = reading.extras
    return (
        logprobs,
        entropy if extras.entropy_gradient else entropy.detach(),
        collision if extras.collision else torch.zeros_like(logprobs),
    )


def _gradients(read: Read, inputs: list[Tensor]) -> list[Tensor]:
    """Of a loss that gives each logprob, and each entropy that has a gradient, a factor of its own."""
    factors = torch.linspace(-1, 2, len(read[0]), dtype=read[0].dtype)
    losses = [(each * (factors + number)).sum() for number, each in enumerate(read) if each.requires_grad]
    return list(torch.autograd.grad(losses, inputs))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.none() | st.integers(1, 10), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_chunks_of_any_size_give_the_values_and_gradients_of_all_tokens_at_once(
    tokens: int, chunk: int | None, has_bias: bool, supported: bool, processed: bool, everything: bool
) -> None:
    hidden, weight, bias = _inputs(tokens)
    inputs = [hidden, weight, *([bias] if has_bias else [])]
    reading = _reading(
        tokens,
        supported=supported,
        extras=EVERYTHING if everything else Extras(),
        processing=ALL_PROCESSING if processed else LogitProcessing(),
    )
    given_bias = bias if has_bias else None
    whole, parts = (
        _at_once(hidden, weight, given_bias, reading),
        read_of_head(hidden, weight, given_bias, reading, chunk),
    )
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(other, one, atol=1e-12, rtol=1e-12)
        assert other.requires_grad == one.requires_grad
    for one, other in zip(_gradients(whole, inputs), _gradients(parts, inputs), strict=True):
        torch.testing.assert_close(other, one, atol=1e-12, rtol=1e-12)


def test_a_token_of_probability_one_half_has_the_numbers_computed_by_hand() -> None:
    """Two tokens of the vocabulary with equal logits: log 1/2, an entropy of log 2, a collision of 1/2."""
    hidden, weight = torch.ones(3, 1), torch.ones(2, 1)
    reading = Reading(targets=torch.tensor([0, 1, 0]), temperature=1.0, extras=EVERYTHING)
    logprobs, entropy, collision = read_of_head(hidden, weight, None, reading, 2)
    torch.testing.assert_close(logprobs.exp(), torch.full((3,), 0.5))
    torch.testing.assert_close(entropy.exp(), torch.full((3,), 2.0))
    torch.testing.assert_close(collision, torch.full((3,), 0.5))


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of operations, and the most elements of any tensor that one of them returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.names.add(function.overloadpacket.__name__)
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("supported", [False, True])
def test_logits_of_more_tokens_than_a_chunk_are_never_there_at_once(supported: bool) -> None:
    tokens, chunk = 40, 6
    hidden, weight, bias = _inputs(tokens)
    reading = _reading(tokens, supported=supported, extras=EVERYTHING)
    with _Watched() as in_chunks:
        _gradients(read_of_head(hidden, weight, bias, reading, chunk), [hidden, weight, bias])
    with _Watched() as at_once:
        _gradients(_at_once(hidden, weight, bias, reading), [hidden, weight, bias])
    assert at_once.elements == tokens * VOCABULARY
    assert in_chunks.elements == max(chunk * VOCABULARY, hidden.numel())


def test_a_frozen_head_has_no_gradient_computed() -> None:
    hidden, weight, bias = _inputs(6)
    read = read_of_head(hidden, weight.detach(), bias.detach(), _reading(6), 4)
    with _Watched() as watched:
        (gradient,) = torch.autograd.grad(read[0].sum(), hidden)
    expected = torch.autograd.grad(_at_once(hidden, weight, bias, _reading(6))[0].sum(), hidden)[0]
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-12)
    assert "addmm_" not in watched.names
    with _Watched() as watched:
        _gradients(read_of_head(hidden, weight, bias, _reading(6), 4), [hidden, weight, bias])
    assert "addmm_" in watched.names  # as it is where the weight is trained


def test_in_bfloat16_the_weights_gradient_is_added_up_in_float32_over_chunks() -> None:
    """500 chunks: added up in bfloat16, each would be lost beside the sum of those before."""
    tokens = 1000
    exact, rounded = _inputs(tokens), _inputs(tokens, torch.bfloat16)
    reading = _reading(tokens)
    expected = torch.autograd.grad(_at_once(*exact, reading)[0].sum(), exact)[1]
    gradient = torch.autograd.grad(read_of_head(*rounded, reading, 2)[0].sum(), rounded)[1]
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.double(), expected, atol=0.02 * float(expected.abs().max()), rtol=0)


def _policy(dtype: torch.dtype = torch.float32) -> Policy:
    return Policy(small_policy().model, dtype=dtype)


SEQUENCES = TokenSequences.of([[5, 6, 7, 8, 3], [9, 10, 2]], [[False, False, True, True, True], [False, True, True]])


def _computed(policy: Policy, head_chunk_tokens: int | None) -> TokenLogprobs:
    """With the gradient of their sum at the policy's weights."""
    policy.zero_grad()
    computed = token_logprobs(policy, SEQUENCES.padded(range(2), 0, CPU), 0.9, EVERYTHING, head_chunk_tokens)
    (computed.logprobs.sum() + 0.1 * computed.entropy.sum()).backward()  # type: ignore[no-untyped-call]
    return computed


def _gradient_of(policy: Policy) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_that_are_the_head_too_get_both_gradients(dtype: torch.dtype) -> None:
    policy = _policy(dtype)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    whole = _computed(policy, None)
    expected = _gradient_of(policy)
    parts = _computed(policy, 2)
    torch.testing.assert_close(parts.logprobs, whole.logprobs, atol=tolerance, rtol=tolerance)
    assert "model.lm_head.weight" not in expected  # it is model.model.embed_tokens.weight
    for name, gradient in _gradient_of(policy).items():
        torch.testing.assert_close(gradient, expected[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("head_chunk_tokens", [5, 1000])
def test_a_chunk_that_holds_all_tokens_leaves_the_bits_of_no_chunks(head_chunk_tokens: int) -> None:
    policy = _policy()
    expected, whole = _computed(policy, None), _gradient_of(policy)
    computed, gradient = _computed(policy, head_chunk_tokens), _gradient_of(policy)
    for name in ("logprobs", "entropy", "collision"):
        assert torch.equal(getattr(computed, name), getattr(expected, name))
    assert whole.keys() == gradient.keys()
    assert all(torch.equal(whole[name], gradient[name]) for name in whole)


def test_a_head_that_is_no_linear_layer_is_refused_in_chunks() -> None:
    policy = _policy()
    policy.model.get_output_embeddings = lambda: torch.nn.Identity()
    with pytest.raises(UserError, match=r"The head of Qwen2ForCausalLM is no linear layer, .*: set head_chunk_tokens"):
        _computed(policy, 2)


class _Counted(Policy):
    """Counts its forward passes."""

    passes = 0

    def forward(self, *inputs: Any) -> Read:
        self.passes += 1
        return super().forward(*inputs)


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_an_update_takes_as_many_forward_passes_and_the_same_step_in_chunks(mini_batches: int) -> None:
    batch = batch_of(
        [[1, 2], [2, 3, 4]] * 4, [[3, 4, 5], [6], [7, 8], [9, 3], [4], [5], [7], [8, 1]], torch.arange(8.0)
    )
    policies, stats = [], []
    for chunk in (None, 2):
        policy = _Counted(_policy().model)
        budget = Budget(sequences=3, head_chunk_tokens=chunk)
        stats.append(small_update(policy, budget, {}, {"mini_batches": mini_batches}).run(0, batch))
        policies.append(policy)
    whole, parts = stats
    assert [policy.passes for policy in policies] == [policies[0].passes] * 2
    assert parts.digests.computed == replace(whole.digests.computed, head_chunk_tokens=2)
    torch.testing.assert_close(parts.logprobs, whole.logprobs, atol=1e-5, rtol=1e-5)
    assert parts.loss == pytest.approx(whole.loss, abs=1e-5)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)


def test_of_no_tokens_nothing_is_read_and_the_weights_get_a_gradient_of_zeros() -> None:
    hidden, weight = (torch.ones(rows, 8, requires_grad=True) for rows in (0, 11))
    read = read_of_head(hidden, weight, None, Reading(targets=torch.zeros(0, dtype=torch.long), temperature=1.0))
    assert [len(each) for each in read] == [0, 0, 0]
    read[0].sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert not weight.grad.any()
