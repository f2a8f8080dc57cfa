"""The policy update of one GRPO step, by all ranks that train the policy together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dagrpo.algorithms.aggregation import weights
from dagrpo.algorithms.divergence import k3
from dagrpo.algorithms.losses import aggregation_of, loss_of
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.distributed import World
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.training import Training
from dagrpo.trainer.accumulated import OldLogprobs, Sums
from dagrpo.trainer.gates import advice_on_memory
from dagrpo.trainer.gates.finite import finite_everywhere, finite_or_zero
from dagrpo.trainer.optimizer import clipped_norm, take_step, warmed_up
from dagrpo.trainer.packing import NOTHING, PaddedBatch, RolloutBatch, micro_batches
from dagrpo.trainer.policy import Policy, TokenLogprobs, token_logprobs

_METRIC = "metric/"  # before the names that a loss gives its own metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What one step's update saw and did."""

    logprobs: Tensor  # [tokens], of the policy that sampled, as the trainer computes them; on the CPU
    entropy: float  # nats per token, of that policy
    loss: float
    kl: float  # k3 to the reference, 0 without one
    metrics: Mapping[str, float]  # of the loss, per token
    grad_norm: float  # before clipping, mean over mini-batches
    learning_rate: float
    skipped: int = 0  # mini-batches whose update was skipped, since a loss or a gradient was not finite


class PolicyUpdate:
    """Turns one step's rollouts into optimizer steps.

    Every rank computes an equal part of every mini-batch; gradients are summed where the policy is sharded.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        reference: Policy | None,
        optimizer: torch.optim.AdamW,
        algorithm: Algorithm,
        training: Training,
        micro_batch_size: int,
        temperature: float,
        max_new_tokens: int,
        pad_token_id: int,
        world: World,
    ) -> None:
        assert (reference is not None) == (algorithm.kl_coefficient > 0)
        self._policy = policy
        self._reference = reference
        self._optimizer = optimizer
        self._algorithm = algorithm
        self._aggregation = aggregation_of(algorithm.aggregation, algorithm.loss)
        self._training = training
        self._micro_batch_size = micro_batch_size
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._pad_token_id = pad_token_id
        self._world = world

    def run(self, step: int, batch: RolloutBatch) -> UpdateStats:
        """One pass over the rollouts of the step numbered from 0. UserError: no memory, or a gradient not finite."""
        with advice_on_memory("runtime.training.micro_batch_size", self._micro_batch_size):
            return self._run(step, batch)

    def _run(self, step: int, batch: RolloutBatch) -> UpdateStats:
        old = OldLogprobs(batch.sequences.trained, self._world.device)
        if self._training.mini_batches > 1:  # of the policy that sampled: before the first of them changes it
            self._compute_old_logprobs(batch, old)
        sums, learning_rate = Sums(self._world.device), 0.0
        grad_norms: list[float | None] = []
        for number, spans in enumerate(self._mini_batches(batch)):
            update = step * self._training.mini_batches + number
            learning_rate = warmed_up(self._training.learning_rate, update, self._training.learning_rate_warmup_steps)
            if spans:  # else all of its trajectories were left out, as every rank knows
                losses = self._accumulate(batch, spans, old, sums)
                grad_norms.append(self._apply(losses, learning_rate))
        assert grad_norms, "refused before: a step without a single trajectory to learn from"
        total, everywhere = sums.over_ranks(self._world), old.of_all_ranks(self._world)
        entropy = float(everywhere.entropy.mean())
        if None in grad_norms:
            total, entropy = finite_or_zero(total), finite_or_zero({"entropy": entropy})["entropy"]
        tokens = sum(batch.sequences.trained)
        return UpdateStats(
            logprobs=everywhere.logprobs,
            entropy=entropy,
            loss=total.pop("loss") / len(grad_norms),
            kl=total.pop("kl", 0.0) / tokens,
            metrics={name.removeprefix(_METRIC): value / tokens for name, value in total.items()},
            grad_norm=sum(norm or 0.0 for norm in grad_norms) / len(grad_norms),
            learning_rate=learning_rate,
            skipped=grad_norms.count(None),
        )

    def _apply(self, losses: Tensor, learning_rate: float) -> float | None:
        """The gradient's norm, or None: it or a loss is not finite in some rank, and nothing was updated in any."""
        norm = clipped_norm(self._optimizer, self._training.max_grad_norm)
        if not finite_everywhere(torch.stack([losses, losses.new_tensor(norm)]), self._world):
            self._optimizer.zero_grad(set_to_none=True)
            return None
        take_step(self._optimizer, learning_rate)
        return norm

    def _mini_batches(self, batch: RolloutBatch) -> list[list[slice]]:
        """The sequences of each trajectory of each mini-batch. A mini-batch has as many prompts as any other."""
        prompts = self._training.prompts_per_step // self._training.mini_batches
        size = prompts * self._training.samples_per_prompt
        return [batch.spans(size * number, size * (number + 1)) for number in range(self._training.mini_batches)]

    def _own_parts(self, spans: Sequence[slice]) -> list[slice]:
        """The micro-batches of this rank."""
        return micro_batches(spans, self._micro_batch_size, self._world.rank, self._world.size)

    @torch.no_grad()
    def _compute_old_logprobs(self, batch: RolloutBatch, old: OldLogprobs) -> None:
        for spans in self._mini_batches(batch):
            for part in self._own_parts(spans):
                old.keep(part, token_logprobs(self._policy, self._padded(batch, part), self._temperature))

    def _accumulate(self, batch: RolloutBatch, spans: Sequence[slice], old: OldLogprobs, sums: Sums) -> Tensor:
        """Add the gradient of this rank's part of one mini-batch; the sum of its losses."""
        losses = torch.zeros((), device=self._world.device)
        lengths = [sum(batch.sequences.trained[span]) for span in spans]
        for part in self._own_parts(spans):
            padded = self._padded(batch, part)
            outputs = token_logprobs(self._policy, padded, self._temperature)
            if self._training.mini_batches == 1:
                old.keep(part, outputs)
            tokens = self._token_batch(batch, part, padded, outputs, old)
            token_weights, denominator = weights(
                self._aggregation, tokens.sequence, lengths, max_new_tokens=self._max_new_tokens
            )
            loss, measured = self._loss(tokens, token_weights * (part != NOTHING))
            loss = loss * (1 / denominator)
            loss.backward()  # type: ignore[no-untyped-call]
            losses += loss.detach()
            sums.add({**measured, "loss": loss}, part)
        return losses

    def _reference_logprobs(self, padded: PaddedBatch) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return token_logprobs(self._reference, padded, self._temperature).logprobs

    def _token_batch(
        self,
        batch: RolloutBatch,
        part: slice,
        padded: PaddedBatch,
        outputs: TokenLogprobs,
        old: OldLogprobs,
    ) -> TokenBatch:
        device, reference = self._world.device, self._reference_logprobs(padded)
        if part == NOTHING:
            return _filler(outputs, reference)
        # A sequence, to losses and weights, is all that the policy wrote in a trajectory, over all of its samples.
        _, trajectory = batch.trajectories[part].unique_consecutive(return_inverse=True)  # type: ignore[no-untyped-call]
        return TokenBatch(
            logprobs=outputs.logprobs,
            old_logprobs=old.of(part),
            rollout_logprobs=batch.rollout_logprobs[old.tokens(part)].to(device, non_blocking=True),
            reference_logprobs=reference,
            entropy=outputs.entropy,
            advantages=batch.advantages[part].to(device, non_blocking=True)[padded.rows],
            sequence=trajectory.to(device, non_blocking=True)[padded.rows],
            sequences=int(trajectory[-1]) + 1,
        )

    def _loss(self, tokens: TokenBatch, token_weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the losses of a micro-batch's tokens, and what was measured on the way."""
        result = loss_of(tokens, self._algorithm.loss)
        measured = {_METRIC + name: value for name, value in result.metrics.items()}
        loss = (result.per_token * token_weights).sum()
        if tokens.reference_logprobs is not None:
            divergence = k3(tokens.logprobs, tokens.reference_logprobs)
            measured["kl"] = divergence.sum()
            loss = loss + self._algorithm.kl_coefficient * (divergence * token_weights).sum()
        return loss, measured

    def _padded(self, batch: RolloutBatch, part: slice) -> PaddedBatch:
        if part == NOTHING:
            return PaddedBatch.filler(self._pad_token_id, self._world.device)
        return batch.sequences.padded(part, self._pad_token_id, self._world.device)


def _filler(outputs: TokenLogprobs, reference: Tensor | None) -> TokenBatch:
    """What a loss sees of a batch that is a filler: a token whose ratio is 1 and whose advantage is 0."""
    logprobs = outputs.logprobs.detach()
    return TokenBatch(
        logprobs=outputs.logprobs,
        old_logprobs=logprobs,
        rollout_logprobs=logprobs,
        reference_logprobs=reference,
        entropy=outputs.entropy,
        advantages=torch.zeros_like(logprobs),
        sequence=torch.zeros_like(logprobs, dtype=torch.int64),
        sequences=1,
    )
