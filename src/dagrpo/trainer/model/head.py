"""Language-model head: per-token values from hidden states, optionally in chunks.

All at once, the logits of all tokens wait in their own type for the backward pass, which turns them into their gradient in place.
In chunks the forward pass keeps only the hidden states, and the backward pass computes the logits of each chunk again: one more product
with the head, and memory for one chunk. logit_stats.py defines the values.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dagrpo.trainer.model.logit_stats import Read, Reading

SLICE = 4096  # tokens of the vocabulary whose gradient is added up at a time, where that takes a copy


def read_of_head(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, reading: Reading, chunk: int | None = None
) -> Read:
    """Return the values that `reading` computes from a linear head's logits, for at most `chunk` tokens at a time; None: all.

    hidden: [tokens, width]; weight: [vocabulary, width]; bias: [vocabulary]. The products of the chunks are of the type of
    the weights, and their gradients are added up in float32 at least; for a frozen weight nothing is computed.
    """
    read: Read = _LinearHead.apply(hidden, weight, bias, reading, chunk or max(len(hidden), 1))  # type: ignore[no-untyped-call]
    return read


class _LinearHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, reading: Reading, chunk: int) -> Read:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.reading, ctx.chunk = reading, chunk
        room = _room(hidden, weight, chunk)
        read = reading.room(room)
        for tokens, part in reading.chunks(chunk):
            part.read(_logits(hidden[tokens], weight, bias, room), [each[tokens] for each in read])
        ctx.cached = room if len(hidden) <= chunk else None
        ctx.mark_non_differentiable(*reading.no_gradient_of(read))
        return read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = _zeros(weight) if needs_weight else None
        of_bias = _zeros(bias) if needs_bias else None
        cached, ctx.cached = ctx.cached, None  # it is overwritten here: another backward pass computes it again
        room = _room(hidden, weight, ctx.chunk) if cached is None else cached
        for tokens, part in ctx.reading.chunks(ctx.chunk):
            raw = _logits(hidden[tokens], weight, bias, room) if cached is None else cached
            of_raw = part.turn_into_gradient(raw, of_logprobs[tokens], of_entropy[tokens])
            if of_hidden is not None:
                torch.mm(of_raw, weight, out=of_hidden[tokens])
            if of_weight is not None:
                _add_product(of_weight, of_raw, hidden[tokens])
            if of_bias is not None:
                of_bias += of_raw.sum(dim=0)
        return of_hidden, _like(of_weight, weight), _like(of_bias, bias), None, None


def _room(hidden: Tensor, weight: Tensor, chunk: int) -> Tensor:
    """Allocate one buffer for the logits of every chunk: freeing and allocating memory again costs time."""
    return hidden.new_empty(min(chunk, len(hidden)), len(weight))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, room: Tensor) -> Tensor:
    """Return the logits as torch.nn.functional.linear computes them, written into `room`."""
    out = room[: len(hidden)]
    return torch.mm(hidden, weight.T, out=out) if bias is None else torch.addmm(bias, hidden, weight.T, out=out)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))


def _like(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(weight.dtype)


def _add_product(total: Tensor, of_raw: Tensor, hidden: Tensor) -> None:
    """Add of_raw.T @ hidden to `total`."""
    if total.dtype == of_raw.dtype:
        total.addmm_(of_raw.T, hidden)
        return
    for start in range(0, len(total), SLICE):
        tokens = slice(start, start + SLICE)
        total[tokens] += of_raw[:, tokens].T @ hidden
