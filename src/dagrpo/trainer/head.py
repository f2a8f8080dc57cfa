"""The language-model head: from hidden states to the few numbers per token that the trainer reads of the logits.

All tokens at once cost several copies of [tokens, vocabulary] in float32. In chunks the forward pass keeps only the hidden states,
and the backward pass computes the logits of each chunk again: one more product with the head, and memory for one chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.trainer.support import PaddedSupport

NEVER = -1e30  # the logit of a token that cannot be drawn: its probability is 0 in any type
Read = tuple[Tensor, Tensor, Tensor]  # (logprobs, entropy, collision), all [tokens]; see TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What is computed of each token beside its logprob and entropy."""

    entropy_gradient: bool = False
    collision: bool = False


PLAIN = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitProcessing:
    """What a model's family does with the logits that its head returns, by the figures in its config.json."""

    caps: tuple[float, ...] = ()  # soft caps, tanh(x / cap) * cap: Gemma 2 to 4, NanoChat, RecurrentGemma
    factors: tuple[float, ...] = ()  # Cohere, Falcon-H1
    divisors: tuple[float, ...] = ()  # Granite

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LogitProcessing":
        """That of a model's family; nothing for most."""
        config = model.config.get_text_config().to_dict()

        def figures(*names: str) -> tuple[float, ...]:
            return tuple(config[name] for name in names if config.get(name) is not None)

        return cls(
            caps=figures("final_logit_softcapping", "logits_soft_cap"),
            factors=figures("logit_scale", "lm_head_multiplier"),
            divisors=figures("logits_scaling"),
        )

    def apply(self, logits: Tensor) -> Tensor:
        """The processed logits, of any shape."""
        for cap in self.caps:
            logits = torch.tanh(logits / cap) * cap
        for factor in self.factors:
            logits = logits * factor
        for divisor in self.divisors:
            logits = logits / divisor
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read of the logits of some tokens."""

    targets: Tensor  # [tokens] int64
    temperature: float
    extras: Extras = PLAIN
    support: PaddedSupport | None = None  # what the tokens were drawn from; None: the whole vocabulary
    processing: LogitProcessing = LogitProcessing()

    def of(self, raw: Tensor) -> Read:
        """Read the logits that the head returns, [tokens, vocabulary]; they are not processed yet."""
        log_softmax = self._log_softmax(raw)
        logprobs = self._at_targets(log_softmax)
        with torch.set_grad_enabled(self.extras.entropy_gradient and torch.is_grad_enabled()):
            entropy = _entropy(log_softmax)
        with torch.no_grad():
            collision = (2 * log_softmax).exp().sum(dim=-1) if self.extras.collision else torch.zeros_like(logprobs)
        return logprobs, entropy, collision

    def gradient(self, raw: Tensor, of_logprobs: Tensor, of_entropy: Tensor) -> Tensor:
        """The gradient of the logits that the head returns, [tokens, vocabulary].

        `of_logprobs` and `of_entropy`: the gradients of what `of` has read of them, [tokens] each.
        """
        with torch.enable_grad():
            raw = raw.detach().requires_grad_()
            log_softmax = self._log_softmax(raw)
            read, gradients = [self._at_targets(log_softmax)], [of_logprobs]
            if self.extras.entropy_gradient:
                read, gradients = [*read, _entropy(log_softmax)], [*gradients, of_entropy]
        return torch.autograd.grad(read, raw, gradients)[0]

    def part(self, tokens: slice) -> "Reading":
        """The same reading, of some of the tokens."""
        support = None if self.support is None else self.support.part(tokens.start, tokens.stop)
        return replace(self, targets=self.targets[tokens], support=support)

    def chunks(self, size: int) -> "Iterator[tuple[slice, Reading]]":
        """All tokens in order, at most `size` at a time: where they are, and the reading of them."""
        for start in range(0, len(self.targets), size):
            tokens = slice(start, min(start + size, len(self.targets)))
            yield tokens, self.part(tokens)

    def _log_softmax(self, raw: Tensor) -> Tensor:
        logits = _at_least_float32(self.processing.apply(raw)) / self.temperature
        logits = logits if self.support is None else _restricted(logits, self.support)
        return torch.log_softmax(logits, dim=-1)

    def _at_targets(self, log_softmax: Tensor) -> Tensor:
        return log_softmax.gather(1, self.targets[:, None])[:, 0]


def streamed(hidden: Tensor, weight: Tensor, bias: Tensor | None, reading: Reading, chunk: int) -> Read:
    """What `reading` reads of the logits of a linear head. At most `chunk` tokens have logits at a time.

    hidden: [tokens, width]; weight: [vocabulary, width]; bias: [vocabulary]. The gradients of weight and bias are added up over
    chunks in float32 at least, and rounded to the type of the weights once; of a weight that needs none, none is computed.
    """
    read: Read = _Streamed.apply(hidden, weight, bias, reading, chunk)  # type: ignore[no-untyped-call]
    return read


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, reading: Reading, chunk: int) -> Read:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.reading, ctx.chunk = reading, chunk
        parts = [
            part.of(torch.nn.functional.linear(hidden[tokens], weight, bias)) for tokens, part in reading.chunks(chunk)
        ]
        logprobs, entropy, collision = (torch.cat(each) for each in zip(*parts, strict=True))
        ctx.mark_non_differentiable(*([collision] if reading.extras.entropy_gradient else [entropy, collision]))
        return logprobs, entropy, collision

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = _zeros(weight) if needs_weight else None
        of_bias = _zeros(bias) if needs_bias else None
        for tokens, part in ctx.reading.chunks(ctx.chunk):
            raw = torch.nn.functional.linear(hidden[tokens], weight, bias)
            of_raw = part.gradient(raw, of_logprobs[tokens], of_entropy[tokens])
            if of_hidden is not None:
                torch.mm(of_raw, weight, out=of_hidden[tokens])
            if of_weight is not None:
                _add_product(of_weight, of_raw.T, hidden[tokens])
            if of_bias is not None:
                of_bias += of_raw.sum(dim=0)
        return of_hidden, _like(of_weight, weight), _like(of_bias, bias), None, None


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))


def _like(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(weight.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _entropy(log_softmax: Tensor) -> Tensor:
    return -(log_softmax.exp() * log_softmax).sum(dim=-1)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _restricted(logits: Tensor, support: PaddedSupport) -> Tensor:
    """The logits, such that a softmax gives probability 0 to every token that is not in the support. [tokens, vocabulary]

    So the ratio of two policies is that of the distributions that were sampled from: Keep Sampling Mask of DeepSeek-V3.2
    (arXiv 2512.02556, section 3.1). No infinity, which would make the entropy no number, nor so near to one that the entropy's
    gradient overflows.
    """
    left = torch.zeros_like(logits, dtype=torch.bool)
    left[support.rows, support.token_ids] = True
    return logits.masked_fill(~left, NEVER)
