"""The policy update of one GRPO step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from dagrpo.grpo.batches import Batch, pad, slices
from dagrpo.grpo.losses.aggregation import denominator
from dagrpo.grpo.losses.kl import k3
from dagrpo.grpo.losses.ppo_clip import ppo_clip
from dagrpo.grpo.optimizer import apply_gradients, warmed_up
from dagrpo.grpo.policy import TokenLogprobs, token_logprobs
from dagrpo.grpo.rollouts import Rollouts
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What one step's update saw and did."""

    logprobs: torch.Tensor  # [tokens], of the policy that sampled, as the trainer computes them
    entropy: float  # nats per token, of that policy
    loss: float
    kl: float  # k3 to the reference, 0 without one
    clip_fraction: float
    grad_norm: float  # before clipping, mean over mini-batches
    learning_rate: float


@dataclass(slots=True)
class _Sums:
    loss: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    tokens: int = 0
    grad_norms: float = 0.0


class PolicyUpdate:
    """Turns rollouts and advantages into optimizer steps. Aggregation is the mean over the tokens of a mini-batch."""

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        optimizer: torch.optim.AdamW,
        algorithm: Algorithm,
        training: Training,
        temperature: float,
        pad_token_id: int,
    ) -> None:
        assert (reference is not None) == (algorithm.kl_coefficient > 0)
        self._model = model
        self._reference = reference
        self._optimizer = optimizer
        self._algorithm = algorithm
        self._training = training
        self._temperature = temperature
        self._pad_token_id = pad_token_id

    def run(self, rollouts: Rollouts, advantages: torch.Tensor) -> Updated:
        """One pass over the rollouts in mini-batches of whole groups. advantages: [completions]."""
        old = self._logprobs_before(rollouts) if self._training.mini_batches > 1 else None
        size = len(rollouts.prompts) // self._training.mini_batches
        sums, seen = _Sums(), []
        learning_rate = 0.0
        for number, span in enumerate(slices(len(rollouts.prompts), size)):
            update = rollouts.step * self._training.mini_batches + number
            learning_rate = warmed_up(self._training.learning_rate, update, self._training.learning_rate_warmup_steps)
            seen.append(self._mini_batch(rollouts, advantages, old, span, sums))
            sums.grad_norms += apply_gradients(self._optimizer, learning_rate, self._training.max_grad_norm)
        before = old if old is not None else _joined([outputs for part in seen for outputs in part])
        return Updated(
            logprobs=before.logprobs,
            entropy=float(before.entropy.mean()),
            loss=sums.loss / self._training.mini_batches,
            kl=sums.kl / sums.tokens,
            clip_fraction=sums.clipped / sums.tokens,
            grad_norm=sums.grad_norms / self._training.mini_batches,
            learning_rate=learning_rate,
        )

    def _mini_batch(
        self, rollouts: Rollouts, advantages: torch.Tensor, old: TokenLogprobs | None, span: slice, sums: _Sums
    ) -> list[TokenLogprobs]:
        """Accumulate the gradient of one mini-batch; returns the logprobs seen on the way, without gradient."""
        lengths = [len(completion.token_ids) for completion in rollouts.completions]
        weight = 1 / denominator(self._algorithm.aggregation, lengths[span])
        seen = []
        for part in slices(span.stop - span.start, self._training.micro_batch_size):
            rows = slice(span.start + part.start, span.start + part.stop)
            batch = self._batch(rollouts, rows)
            outputs = token_logprobs(self._model, batch, self._temperature)
            tokens = slice(sum(lengths[: rows.start]), sum(lengths[: rows.stop]))
            before = outputs.logprobs.detach() if old is None else old.logprobs[tokens]
            token_advantages = advantages[rows].to(outputs.logprobs.device)[batch.rows]
            loss = self._loss(batch, outputs.logprobs, before, token_advantages, sums) * weight
            loss.backward()  # type: ignore[no-untyped-call]
            sums.loss += float(loss.detach())
            seen.append(TokenLogprobs(logprobs=outputs.logprobs.detach(), entropy=outputs.entropy))
        return seen

    def _loss(
        self, batch: Batch, logprobs: torch.Tensor, before: torch.Tensor, advantages: torch.Tensor, sums: _Sums
    ) -> torch.Tensor:
        """The summed loss of a micro-batch; all arguments but the batch are [tokens]."""
        clipped = ppo_clip(logprobs, before, advantages, self._algorithm.clip_low, self._algorithm.clip_high)
        sums.tokens += logprobs.numel()
        sums.clipped += float(clipped.clipped.sum())
        loss = clipped.per_token.sum()
        if self._reference is not None:
            with torch.no_grad():
                reference = token_logprobs(self._reference, batch, self._temperature).logprobs
            divergence = k3(logprobs, reference)
            sums.kl += float(divergence.detach().sum())
            loss = loss + self._algorithm.kl_coefficient * divergence.sum()
        return loss

    @torch.no_grad()
    def _logprobs_before(self, rollouts: Rollouts) -> TokenLogprobs:
        spans = slices(len(rollouts.prompts), self._training.micro_batch_size)
        return _joined([token_logprobs(self._model, self._batch(rollouts, span), self._temperature) for span in spans])

    def _batch(self, rollouts: Rollouts, rows: slice) -> Batch:
        prompts = [prompt.token_ids for prompt in rollouts.prompts[rows]]
        completions = [completion.token_ids for completion in rollouts.completions[rows]]
        return pad(prompts, completions, self._pad_token_id, self._model.device)


def _joined(parts: Sequence[TokenLogprobs]) -> TokenLogprobs:
    return TokenLogprobs(
        logprobs=torch.cat([part.logprobs for part in parts]), entropy=torch.cat([part.entropy for part in parts])
    )
