"""Language-model head: logprob and entropy of each token, optionally in chunks.

With p the softmax of a token's logits and H its entropy, logprob[i] has the gradient onehot(i) - p, and the entropy -p (log p + H).
Rows are read a few at a time. On a CPU these stay in the processor's cache, where an operation takes a third of its time; on any
device only they are in float32.

All at once, the logits of all tokens wait in their own type for the backward pass, which turns them into their gradient in place.
In chunks the forward pass keeps only the hidden states, and the backward pass computes the logits of each chunk again: one more product
with the head, and memory for one chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.trainer.batches.micro_batches import CACHED, LAUNCHED
from dagrpo.trainer.batches.sampling_mask import PaddedSupport

SLICE = 4096  # tokens of the vocabulary whose gradient is added up at a time, where that takes a copy
NEVER = -1e30  # the logit of a token outside the sampling mask: its probability is 0 in any type
Read = tuple[Tensor, Tensor, Tensor]  # (logprobs, entropy, collision), all [tokens]; see TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Values that are computed of each token beside its logprob and entropy."""

    entropy_gradient: bool = False
    collision: bool = False


PLAIN = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitProcessing:
    """Processing of the head's logits in a model's family, by the figures in its config.json."""

    caps: tuple[float, ...] = ()  # soft caps, tanh(x / cap) * cap: Gemma 2 to 4, NanoChat, RecurrentGemma
    factors: tuple[float, ...] = ()  # Cohere, Falcon-H1
    divisors: tuple[float, ...] = ()  # Granite

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LogitProcessing":
        """Return the processing of a model's family, which most families do without."""
        config = model.config.get_text_config().to_dict()

        def figures(*names: str) -> tuple[float, ...]:
            return tuple(config[name] for name in names if config.get(name) is not None)

        return cls(
            caps=figures("final_logit_softcapping", "logits_soft_cap"),
            factors=figures("logit_scale", "lm_head_multiplier"),
            divisors=figures("logits_scaling"),
        )

    def apply(self, logits: Tensor) -> Tensor:
        """Return the processed logits, of any shape."""
        for cap in self.caps:
            logits = torch.tanh(logits / cap) * cap
        for factor in self.factors:
            logits = logits * factor
        for divisor in self.divisors:
            logits = logits / divisor
        return logits


UNPROCESSED = LogitProcessing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Values to compute from the logits of some tokens."""

    targets: Tensor  # [tokens] int64
    temperature: float
    extras: Extras = PLAIN
    support: PaddedSupport | None = None  # sampling mask of the tokens; None: the whole vocabulary
    processing: LogitProcessing = UNPROCESSED

    def of(self, raw: Tensor) -> Read:
        """Read unprocessed logits of any head, [tokens, vocabulary], keeping their gradient."""
        read: Read = _Read.apply(raw, self)  # type: ignore[no-untyped-call]
        return read

    def room(self, raw: Tensor) -> Read:
        """Allocate the tensors that `read` writes to; `raw`: any logits of the type and device of those to be read.

        All of it is allocated before the first row is read: a small result behind each few rows would keep their memory from
        being reused, and the process would grow by the size of all logits.
        """
        dtype = torch.promote_types(raw.dtype, torch.float32)
        logprobs, entropy, collision = (raw.new_zeros(len(self.targets), dtype=dtype) for _ in range(3))
        return logprobs, entropy, collision

    def read(self, raw: Tensor, room: Sequence[Tensor]) -> None:
        """Read the values of `of`, without a gradient, into tensors of [tokens] each."""
        for tokens, part in self.chunks(_rows_at_a_time(raw)):
            for whole, own in zip(room, part._read_rows(raw[tokens]), strict=True):
                whole[tokens] = own

    def turn_into_gradient(self, raw: Tensor, of_logprobs: Tensor, of_entropy: Tensor) -> Tensor:
        """Overwrite the logits of the head, [tokens, vocabulary], with their gradient, and return that.

        `of_logprobs` and `of_entropy`: the gradients of the values of `of`, [tokens] each.
        """
        for tokens, part in self.chunks(_rows_at_a_time(raw)):
            rows = raw[tokens]
            rows.copy_(part._gradient_of_rows(rows, of_logprobs[tokens, None], of_entropy[tokens, None]))
        return raw

    def no_gradient_of(self, read: Read) -> tuple[Tensor, ...]:
        """Return the values without a gradient."""
        return read[2:] if self.extras.entropy_gradient else read[1:]

    def part(self, tokens: slice) -> "Reading":
        """Return this reading for some of the tokens."""
        support = None if self.support is None else self.support.part(tokens.start, tokens.stop)
        return replace(self, targets=self.targets[tokens], support=support)

    def chunks(self, size: int) -> "Iterator[tuple[slice, Reading]]":
        """Yield the slice and the reading of at most `size` tokens at a time, in order."""
        for start in range(0, len(self.targets), size):
            tokens = slice(start, min(start + size, len(self.targets)))
            yield tokens, self.part(tokens)

    def _read_rows(self, raw: Tensor) -> Read:
        shifted = self._shifted(self.processing.apply(raw))
        at_targets = shifted.gather(1, self.targets[:, None])[:, 0]
        powers = shifted.exp()
        total = powers.sum(dim=-1)
        collision = powers.square().sum(dim=-1) / total.square() if self.extras.collision else torch.zeros_like(total)
        # From the shifted logits, which are at most 0: the logits themselves would leave the difference of two large numbers.
        entropy = total.log() - powers.mul_(shifted).sum(dim=-1) / total
        return at_targets - total.log(), entropy, collision

    def _gradient_of_rows(self, raw: Tensor, of_logprobs: Tensor, of_entropy: Tensor) -> Tensor:
        """Return the gradient of some rows of logits, from the gradients of their values, [rows, 1] each."""
        if self.processing == UNPROCESSED:
            return self._gradient_of_logits(raw, of_logprobs, of_entropy)
        with torch.enable_grad():
            raw = raw.detach().requires_grad_()
            logits = self.processing.apply(raw)
        gradient = self._gradient_of_logits(logits.detach(), of_logprobs, of_entropy)
        return torch.autograd.grad(logits, raw, gradient.to(logits.dtype))[0]

    def _gradient_of_logits(self, logits: Tensor, of_logprobs: Tensor, of_entropy: Tensor) -> Tensor:
        shifted = self._shifted(logits)
        powers = shifted.exp() if self.extras.entropy_gradient else shifted.exp_()
        total = powers.sum(dim=-1, keepdim=True)
        share = -of_logprobs / total
        if self.extras.entropy_gradient:
            # p (log p + H) is powers / total * (shifted - mean), where mean is what p expects of shifted.
            mean = (powers * shifted).sum(dim=-1, keepdim=True) / total
            slope = -of_entropy / total
            gradient = shifted.sub_(mean).mul_(slope).add_(share).mul_(powers)
        else:
            gradient = powers.mul_(share)
        rows = torch.arange(len(gradient), device=gradient.device)
        gradient[rows, self.targets] += of_logprobs[:, 0]
        return gradient if self.temperature == 1.0 else gradient.div_(self.temperature)

    def _shifted(self, logits: Tensor) -> Tensor:
        """Return the softmax's input in a new tensor: processed logits less the maximum of each row."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logits = logits if self.temperature == 1.0 else logits / self.temperature
        logits = logits if self.support is None else _restricted(logits, self.support)
        return logits - logits.amax(dim=-1, keepdim=True)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, reading: Reading) -> Read:
        ctx.save_for_backward(raw)
        ctx.reading = reading
        read = reading.room(raw)
        reading.read(raw, read)
        ctx.mark_non_differentiable(*reading.no_gradient_of(read))
        return read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (raw,) = ctx.saved_tensors
        return ctx.reading.turn_into_gradient(raw.clone(), of_logprobs, of_entropy), None


def _rows_at_a_time(raw: Tensor) -> int:
    logits = CACHED if raw.device.type == "cpu" else LAUNCHED
    return max(1, logits // raw.shape[1])


def _restricted(logits: Tensor, support: PaddedSupport) -> Tensor:
    """Return logits whose softmax is 0 for every token outside the sampling mask. [tokens, vocabulary]

    So the ratio of two policies is that of the distributions that were sampled from: Keep Sampling Mask of DeepSeek-V3.2
    (arXiv 2512.02556, section 3.1). The masked logits are finite, as infinity would make the entropy NaN, and not so large that
    the entropy's gradient overflows.
    """
    inside = torch.zeros_like(logits, dtype=torch.bool)
    inside[support.rows, support.token_ids] = True
    return logits.masked_fill(~inside, NEVER)


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
