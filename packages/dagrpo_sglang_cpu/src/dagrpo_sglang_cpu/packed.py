"""Matrix products with weights in oneDNN's packed layout.

They take 0.6 of the time where few rows meet all weights. A product packs a copy of its weight when first needed. A copy of old
weights would give wrong answers, and no digest of the weights would show it. So no copy may outlive a weight sync, however the weights
come. This does not rest on a list of all the ways: between two forward passes only requests change a scheduler, and all copies are
dropped before and after it handles any request other than those named in HARMLESS.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Requests of a scheduler that leave weights alone. One that is missing here costs time, and nothing else.
HARMLESS = ("TokenizedGenerateReqInput", "BatchTokenizedGenerateReqInput", "FlushCacheReqInput", "AbortReq")
ROWS = 16  # what a copy is laid out for; products with other numbers of rows can use it, too
# Of the largest models of a process that are packed. All matrices or none: else the bits would depend on which came first.
MOST_BYTES = 2 << 30
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


class PackedWeights:
    """Hooks around SGLang's products with weights, and around a scheduler's handling of requests."""

    def __init__(self, terms: int | None = None) -> None:
        """Pack weights for sums of at most `terms` terms; None: of any number."""
        self._terms = math.inf if terms is None else terms
        self._copies: dict[tuple[Tensor, torch.dtype], Tensor] = {}
        self._bytes = 0  # of the matrices of all models
        supported = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        self._dtypes = {FLOAT32} if supported else set()
        if supported and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            self._dtypes.add(BFLOAT16)

    def count(self, result: object, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Count the bytes of the matrices after ModelRunner.load_model."""
        matrices = (weight for weight in runner.model.parameters() if weight.dim() == 2)
        self._bytes += sum(weight.numel() * weight.itemsize for weight in matrices)

    def drop_around_requests(
        self, original: Callable[..., None], scheduler: Any, requests: Iterable[object], **kwargs: Any
    ) -> None:
        """Drop all copies around Scheduler.process_input_requests, unless all requests are harmless."""
        requests = list(requests)
        if all(type(request).__name__ in HARMLESS for request in requests):
            original(scheduler, requests, **kwargs)
            return
        self.drop()
        try:
            original(scheduler, requests, **kwargs)
        finally:
            self.drop()

    def drop(self) -> None:
        """Drop all copies."""
        self._copies.clear()

    def apply(
        self, original: Callable[..., Tensor], method: Any, layer: Any, x: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Compute UnquantizedLinearMethod.apply with packed weights."""
        if x.dtype != layer.weight.dtype or getattr(layer, "use_intel_amx_backend", False):
            return original(method, layer, x, bias)
        product = self._product(x, layer.weight, bias)
        return original(method, layer, x, bias) if product is None else product

    def compute_head(
        self,
        original: Callable[..., Tensor],
        processor: Any,
        hidden_states: Tensor,
        head: Any,
        embedding_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Compute LogitsProcessor._compute_lm_head with a packed weight; the weight itself, which may be the embedding's, is unchanged."""
        if is_plain_head(processor, head):
            dtype = FLOAT32 if processor.use_fp32_lm_head else head.weight.dtype
            product = self._product(hidden_states.to(dtype), head.weight, None)
            if product is not None:
                return product
        return original(processor, hidden_states, head, embedding_bias, **kwargs)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """Return the product in the type of x; None if this weight is not packed."""
        if x.dtype not in self._dtypes or not x.numel() or self._bytes > MOST_BYTES:
            return None
        if weight.dim() != 2 or weight.device.type != "cpu" or weight.shape[1] > self._terms:
            return None
        copy = self._copies.get((weight, x.dtype))
        if copy is None:
            copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(x.dtype), ROWS)
            self._copies[weight, x.dtype] = copy
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, copy, bias, "none", [], "")
        return product


def is_plain_head(processor: Any, head: Any) -> bool:
    """Return True if SGLang would multiply hidden states with a head's weight, and do nothing else."""
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    return (
        processor.rl_on_policy_target is None
        and not (hasattr(head, "set_lora") and hasattr(head, "apply_lora"))
        and not should_apply_lm_head_quant_method(head, getattr(head, "quant_method", None))
        and hasattr(head, "weight")
        and not getattr(head, "use_intel_amx_backend", False)
    )
