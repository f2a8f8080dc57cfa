"""Tensors without values, which report the device of a CPU or GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional
from torch.overrides import TorchFunctionMode

META = torch.device("meta")
_device_of = torch.Tensor.device.__get__


class StandIn(TorchFunctionMode):
    """Mode in which tensors of torch's meta device report another device, which this machine need not have.

    Code that branches on the type of a device takes the branch that it would take there, and autograd works, which it does not for fake
    tensors of a CUDA device in a build without CUDA. Attention goes to the kernel that torch chooses there.
    """

    def __init__(self, device: torch.device) -> None:
        """Report `device`, the CPU or a GPU."""
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Call a function of torch, with the meta device in place of the reported one."""
        kwargs = dict(kwargs or {})
        if func == _device_of:
            real = func(*args)
            return self.device if real == META else real
        if func is Tensor.backward:
            return self._backward(args[0])
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == self.device.type:
            kwargs["device"] = META
        if self.device.type != "cpu":  # what asks for the CPU by position leaves the device
            args = [META if isinstance(each, torch.device) and each.type == self.device.type else each for each in args]
        return func(*args, **kwargs)

    def _backward(self, loss: Tensor) -> None:
        """Run the backward pass within this mode, which torch has left for the call: layers may be recomputed there."""
        with self:
            _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, True)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attend as torch does on a CPU, and on a GPU: by flash attention in 16 bits without a mask, else memory-efficient.

        query, key, value: [sequences, heads, tokens, head size].
        """
        aten: Any = torch.ops.aten
        flash_on_gpu = self.device.type != "cpu" and attn_mask is None and query.dtype.itemsize < 4
        if enable_gqa and not flash_on_gpu:
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        attended: tuple[Tensor, ...]
        if self.device.type == "cpu":
            mask = attn_mask if attn_mask is None or attn_mask.dtype != torch.bool else attn_mask.to(query.dtype)
            attended = aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
            )
        elif flash_on_gpu:
            attended = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, False, scale=scale)
        else:
            bias = None if attn_mask is None else attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
            attended = aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, torch.is_grad_enabled(), 0.0, is_causal, scale=scale
            )
        return attended[0]
