"""CPU attention in float32, also in models of 16-bit types.

torch's kernels for 16 bits take about twice as long there, forward and backward, and round more. GPU kernels need none of
this: they accumulate in float32.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dagrpo.checkpoints.modelling import PreTrainedModel

NAME = "dagrpo_float32"


def attend_in_float32(model: PreTrainedModel) -> None:
    """Cast queries, keys and values to float32 before attention, and its result back, from now on."""
    AttentionInterface.register(NAME, attended)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def attended(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention as transformers' attention functions do: query, key, value are [sequences, heads, tokens, head size].

    Returns [sequences, tokens, heads, head size] in the query's type.
    """
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    output, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), attention_mask, **options)
    return output.to(query.dtype), None
