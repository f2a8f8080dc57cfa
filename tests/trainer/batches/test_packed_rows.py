"""Sequences end to end in one row: the same loss and gradient as side by side and padded, and no token that is nobody's."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.everyday import everyday
from tests.trainer import in_double
from tests.trainer.in_double import SIZES
from tests.trainer.small_updates import BATCH, FILTERED, SHARED, moved_policy, small_policy, small_update
from torch import Tensor
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import Batch, MicroBatch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget, MicroBatchSplitter, usual_layout
from dagrpo.trainer.batches.packed_rows import Segments
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.model import attention
from dagrpo.trainer.model import prepare as gate
from dagrpo.trainer.model.fsdp import checkpoint_activations
from dagrpo.trainer.model.lora import add_adapter, begin
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.model.prepare import prepare_layout
from dagrpo.utils.distributed import single_process

CPU = torch.device("cpu")
WINDOW = 3
HYBRID: dict[str, Any] = {
    **SIZES, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_experts": 2,
    "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "linear_num_key_heads": 1,
    "linear_num_value_heads": 1, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
drawn_sequences = st.lists(
    st.tuples(
        st.lists(st.integers(1, 39), min_size=1, max_size=6),
        st.lists(st.booleans(), min_size=1, max_size=7).filter(any),
    ),
    min_size=1,
    max_size=6,
)


def _sequences(drawn: list[tuple[list[int], list[bool]]]) -> TokenSequences:
    """From prompts, and which of the tokens after them are trained; the others are a tool's."""
    ids = [[*prompt, *(1 + (place * 7) % 39 for place in range(len(mask)))] for prompt, mask in drawn]
    return TokenSequences.of(ids, [[False] * len(prompt) + mask for prompt, mask in drawn])


def test_a_small_batch_is_packed_as_written_by_hand() -> None:
    sequences = TokenSequences.of(
        [[5, 6, 7], [8, 9], [3, 4, 2, 1]], [[False, False, True], [False, True], [False, True, False, True]]
    )
    batch = sequences.packed(range(3), CPU)
    assert batch.input_ids.tolist() == [[8, 9, 5, 6, 7, 3, 4, 2, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2, 0, 1, 2, 3]]
    assert (batch.segments.lengths, batch.segments.ends.tolist()) == ((2, 3, 4), [0, 2, 5, 9])
    assert (batch.rows.tolist(), batch.columns.tolist()) == ([0, 1, 2, 2], [3, 0, 5, 7])
    assert batch.targets.tolist() == [7, 9, 4, 1]


def test_the_segments_of_a_shared_prompt_are_as_written_by_hand() -> None:
    """A prompt of 2 tokens, followed by 1 token and by 3: the example of Segments."""
    segments = Segments.of([2, 1, 3], [None, 0, 0], CPU)
    assert (segments.lengths, segments.contexts) == ((2, 1, 3), (0, 2, 2))
    assert segments.ends.tolist() == [0, 2, 3, 6]
    assert segments.seen is not None
    assert segments.seen.tolist() == [0, 1, 0, 1, 2, 0, 1, 3, 4, 5]
    assert segments.seen_ends.tolist() == [0, 2, 5, 10]
    assert Segments.of([2, 1], [None, None], CPU).seen is None


@pytest.fixture(autouse=True, scope="module")
def _double() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Qwen2RMSNorm, "forward", in_double.norm)
        yield


@pytest.fixture(
    scope="module", params=everyday(["all", "an adapter"], ["all", "a window", "checkpointed", "an adapter"])
)
def policy(request: pytest.FixtureRequest) -> Policy:
    """Which attends to all tokens before, or to so many; computes layers again; or has an adapter that is not 0."""
    windowed = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    policy = in_double.policy(**(windowed if request.param == "a window" else {}))
    if request.param == "checkpointed":
        checkpoint_activations(policy.model)
    if request.param == "an adapter":
        add_adapter(policy.model, Lora(rank=2, alpha=4))
        begin(policy.model, 0)
        policy.double()
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.3)
    policy.take_packed()
    return policy


@settings(max_examples=25)
@given(drawn_sequences)
def test_logprobs_entropies_and_gradients_are_those_of_padded_sequences(
    policy: Policy, drawn: list[tuple[list[int], list[bool]]]
) -> None:
    """In double, to 1e-12, whatever the lengths are; prompts that are shared included."""
    sequences = _sequences([*drawn, *[(prompt, [*mask, True]) for prompt, mask in drawn[:3]]])
    numbers = range(len(sequences))
    whole = in_double.computed(policy, sequences.padded(numbers, 0, CPU))
    for share in (False, True):
        computed = in_double.computed(policy, sequences.packed(numbers, CPU, share_prompts=share))
        for padded, packed in zip(whole, computed, strict=True):
            torch.testing.assert_close(packed, padded, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tokens", [None, 9])
@pytest.mark.parametrize("rollouts", [BATCH, SHARED, FILTERED])
def test_an_update_on_packed_rows_with_shared_prompts_has_the_gradient_of_one_on_padded_sequences(
    rollouts: Batch, tokens: int | None
) -> None:
    """In double, to 1e-12, as one micro-batch and cut into several; with a reference."""
    algorithm = {"kl": {"coefficient": 0.1}}
    budgets = Budget(sequences=256), Budget(sequences=256, tokens=tokens, layout="packed", share_prompts=True)
    padded, packed = (
        small_update(moved_policy().double(), budget, algorithm, {}, reference=small_policy().double())
        for budget in budgets
    )
    one, other = padded.run(0, rollouts), packed.run(0, rollouts)
    for name, gradient in padded.gradient.items():
        torch.testing.assert_close(packed.gradient[name], gradient, rtol=1e-12, atol=1e-12)
    assert other.loss == pytest.approx(one.loss, rel=1e-12)
    assert (one.digests.computed.layout, other.digests.computed.layout) == ("padded", "packed")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_it_is_as_near_to_the_exact_values_as_the_padded_form(dtype: torch.dtype) -> None:
    sequences = _sequences([([5, 6, 7], [True] * 9), ([3], [True] * 4), ([9, 8, 7, 6], [True] * 9)])
    batches: list[MicroBatch] = [sequences.padded(range(3), 0, CPU), sequences.packed(range(3), CPU)]
    own = Policy(in_double.policy().model.float(), dtype=dtype)
    own.take_packed()
    true = token_logprobs(in_double.policy(), batches[0], 1.0).logprobs
    padded, packed = ((token_logprobs(own, batch, 1.0).logprobs - true).abs().mean() for batch in batches)
    assert 0 < packed < 2 * padded


WINDOWED_BY_THE_MASK_ALONE = {
    "qwen2_moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0, num_experts=2, num_experts_per_tok=2,
            moe_intermediate_size=8, shared_expert_intermediate_size=8, decoder_sparse_step=1,
        )
    ),
    "phimoe": lambda: PhimoeForCausalLM(PhimoeConfig(**SIZES, sliding_window=WINDOW, num_local_experts=2)),
}  # fmt: skip


@pytest.mark.parametrize("family", [*WINDOWED_BY_THE_MASK_ALONE])
def test_a_window_that_a_model_tells_its_mask_alone_is_kept(family: str) -> None:
    """Such models do not hand it to their attention, as others do."""
    torch.manual_seed(0)
    model = WINDOWED_BY_THE_MASK_ALONE[family]().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    policy, sequences = Policy(model), _sequences([([5, 6, 7, 8], [True] * 9), ([3], [True] * 6)])
    padded = token_logprobs(policy, sequences.padded(range(2), 0, CPU), 1.0).logprobs
    policy.take_packed()
    packed = token_logprobs(policy, sequences.packed(range(2), CPU), 1.0).logprobs
    torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, WINDOW])
def test_no_mask_is_as_large_as_the_row(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers get none, or the window alone, and attention makes none beyond a sequence's."""
    policy = in_double.policy(use_sliding_window=window is not None, sliding_window=window, max_window_layers=0)
    policy.take_packed()
    given_masks: list[Any] = []
    policy.model.model.layers[0].register_forward_pre_hook(
        lambda layer, inputs, options: given_masks.append(
            options["attention_mask"] if window is None else options["attention_mask"].shape[0]
        ),
        with_kwargs=True,
    )
    made: list[tuple[int, ...]] = []
    own = torch.nn.functional.scaled_dot_product_attention

    def watched(*inputs: Any, **options: Any) -> Tensor:
        mask = options["attn_mask"]
        made.append((0,) if mask is None else tuple(mask.shape[-2:]))
        return own(*inputs, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    token_logprobs(
        policy, _sequences([([5, 6], [True] * 2), ([3], [True] * 4), ([3, 4], [True] * 3)]).packed(range(3), CPU), 1.0
    )
    assert given_masks == [window]
    assert made == ([(0,), (0,)] if window is None else [(4, 4), (5, 5)]) * 2  # of two layers, in groups of one length


def test_micro_batches_of_packed_sequences_count_no_padding() -> None:
    """Lengths 8, 5, 4 and 3 within 13 tokens: padded 8 | 5 and 4 | 3, packed 8 and 5 | 4 and 3."""
    sequences = _sequences([([1] * (length - 1), [True]) for length in (8, 5, 4, 3)])
    spans = [slice(number, number + 1) for number in range(4)]
    cut = [
        MicroBatchSplitter(sequences, Budget(sequences=99, tokens=13, layout=layout)).micro_batches(spans, 0, 1)
        for layout in ("padded", "packed")
    ]
    assert cut == [[(0,), (1, 2), (3,)], [(0, 1), (2, 3)]]


def _ignores_positions(model: Any) -> Any:
    """One that adds an embedding of each token's place; turned by it, as most families do it, queries and keys know only distances."""
    read = model.base_model.forward
    model.base_model.forward = lambda position_ids=None, **inputs: read(**inputs)
    return model


def _keeps_segments(model: Any) -> Any:
    """As a family that does not hand on what its attention is told."""
    read = model.model.forward
    model.model.forward = lambda position_ids=None, segments=None, **inputs: read(position_ids=position_ids, **inputs)
    return model


REFUSED = {
    "linear attention beside attention": lambda: Qwen3NextForCausalLM(Qwen3NextConfig(**HYBRID)),
    "chunks": lambda: Llama4ForCausalLM(Llama4TextConfig(**SIZES, attention_chunk_size=16, num_local_experts=1)),
    "other positions": lambda: _ignores_positions(
        GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=64, n_embd=16, n_layer=1, n_head=2))
    ),
    "segments that do not arrive": lambda: _keeps_segments(Qwen2ForCausalLM(Qwen2Config(**SIZES))),
    "attention that cannot be replaced": lambda: FalconForCausalLM(
        FalconConfig(
            vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64
        )
    ),
    "attention of its own": lambda: Qwen2ForCausalLM._from_config(Qwen2Config(**SIZES), attn_implementation="eager"),
}


@pytest.mark.parametrize("kind", [*REFUSED])
def test_a_model_that_would_compute_something_else_is_refused_and_padded_where_nobody_asks(kind: str) -> None:
    torch.manual_seed(0)
    model = REFUSED[kind]().eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    before = model.config._attn_implementation
    assert prepare_layout(Policy(model), None, single_process()) == "padded"
    with pytest.raises(UserError, match="set layout to padded or null"):
        prepare_layout(Policy(model), "packed", single_process())
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_leak_between_sequences_is_found_in_any_type(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model's logprobs hardly differ for it, and in 16 bits rounding hides as much."""
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    assert prepare_layout(Policy(model, dtype=dtype), None, single_process()) == "packed"
    whole = attention._by_length

    def leaking(module: Any, of_row: list[Tensor], *inputs: Any) -> Tensor:
        output = whole(module, of_row, *inputs)
        return output + 0.1 * of_row[2][0].repeat_interleave(output.shape[1] // of_row[2].shape[1], 0)

    monkeypatch.setattr(attention, "_by_length", leaking)
    monkeypatch.setattr(gate, "MOST_NATS", 1.0)
    assert prepare_layout(Policy(model, dtype=dtype), None, single_process()) == "padded"


def test_a_model_that_attends_to_a_window_alone_is_packed() -> None:
    model = Gemma2ForCausalLM(Gemma2Config(**SIZES, sliding_window=4))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    policy = Policy(model.eval())
    assert prepare_layout(policy, "padded", single_process()) == "padded"
    assert policy.model.config._attn_implementation == "sdpa"
    assert prepare_layout(policy, None, single_process()) == "packed"
    assert policy.model.config._attn_implementation == "dagrpo_packed"


def test_who_asks_for_no_layout_gets_the_devices_own_or_one_that_shares_prompts() -> None:
    layouts = [usual_layout(narrow=narrow, on_gpu=gpu) for narrow, gpu in ((False, False), (True, True), (False, True))]
    assert layouts == ["packed", "packed", "padded"]
    assert usual_layout(narrow=False, on_gpu=True, share_prompts=True) == "packed"
