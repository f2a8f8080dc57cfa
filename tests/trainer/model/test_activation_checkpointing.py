"""Activation checkpointing: the bits of the same pass without, in less memory."""

from typing import Any

import pytest
import torch
import transformers
from tests.trainer import in_double
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.model.fsdp import checkpoint_activations
from dagrpo.trainer.model.lora import add_adapter, begin
from dagrpo.trainer.model.policy import Policy, token_logprobs

SEQUENCES = TokenSequences.of([[5, 6, 7, 8, 3], [9, 10, 2]], [[False, False, True, True, True], [False, True, True]])
SIZES: dict[str, Any] = in_double.SIZES | {"bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2}


def _policy(family: str = "Qwen2", dtype: torch.dtype = torch.float32, rank: int = 0) -> Policy:
    torch.manual_seed(0)
    sizes = SIZES | (EXPERTS if family == "Qwen3Moe" else {})
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**sizes)).eval()
    if rank:
        add_adapter(model, Lora(rank=rank))
        begin(model, 0)
    return Policy(model, dtype=dtype)


def _computed(policy: Policy) -> tuple[Tensor, dict[str, Tensor], int]:
    """Logprobs, the gradients of their sum, and the bytes that the forward pass keeps beside the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in policy.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        logprobs = token_logprobs(policy, SEQUENCES.padded(range(2), 0, torch.device("cpu")), 0.9).logprobs
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    named = policy.named_parameters()
    return logprobs, {name: weight.grad for name, weight in named if weight.grad is not None}, sum(kept.values())


@pytest.mark.parametrize(
    ("family", "dtype", "rank"),
    [
        ("Qwen2", torch.float32, 0),
        ("Qwen2", torch.bfloat16, 0),
        ("Qwen2", torch.float32, 2),
        ("Gemma2", torch.float32, 0),
        ("Qwen3Moe", torch.float32, 0),
    ],
)
def test_logprobs_and_gradients_are_the_same_bits_and_less_is_kept(family: str, dtype: torch.dtype, rank: int) -> None:
    plain, checkpointed = _policy(family, dtype, rank), _policy(family, dtype, rank)
    checkpoint_activations(checkpointed.model)
    expected, gradients, kept = _computed(plain)
    logprobs, ours, still_kept = _computed(checkpointed)
    assert torch.equal(logprobs, expected)
    assert ours.keys() == gradients.keys()
    assert all(torch.equal(ours[name], gradients[name]) for name in gradients)
    assert still_kept < kept


def test_a_layer_is_computed_twice_with_a_gradient_and_once_without() -> None:
    policy = _policy()
    checkpoint_activations(policy.model)
    passes: list[int] = []
    policy.model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    _computed(policy)
    assert len(passes) == 2
    with torch.no_grad():
        token_logprobs(policy, SEQUENCES.padded(range(2), 0, torch.device("cpu")), 0.9)
    assert len(passes) == 3


def test_a_model_without_such_layers_is_refused_by_name() -> None:
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES | {"num_hidden_layers": 0}))
    with pytest.raises(UserError, match=r"Qwen2ForCausalLM \(qwen2\) has no layers .* activation_checkpointing"):
        checkpoint_activations(model)
