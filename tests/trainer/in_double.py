"""A tiny policy that computes in double, so that rounding hides nothing above 1e-12."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.trainer.batches.batch import MicroBatch
from dagrpo.trainer.model.head import Extras
from dagrpo.trainer.model.policy import Policy, token_logprobs

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def norm(own: Any, hidden: Tensor) -> Tensor:
    """The forward pass of Qwen2RMSNorm; transformers' own computes in float32, whose rounding would hide everything below 1e-7."""
    scaled: Tensor = own.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + own.variance_epsilon)
    return scaled


def policy(**config: Any) -> Policy:
    """Weights are so large that attention is more than a mean."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, **config)).double().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return Policy(model)


def computed(policy: Policy, batch: MicroBatch) -> list[Tensor]:
    """All that is read of a batch, and the gradients of all weights."""
    read = token_logprobs(policy, batch, 0.7, Extras(entropy_gradient=True, collision=True))
    weights = torch.linspace(-1, 1, len(read.logprobs), dtype=torch.float64)
    policy.zero_grad()
    (weights * read.logprobs + 0.3 * read.entropy).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]
    return [read.logprobs, read.entropy, read.collision, *gradients]
