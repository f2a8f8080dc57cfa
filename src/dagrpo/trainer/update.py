"""The policy update of one GRPO step, by all processes that train the policy together."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dagrpo.algorithms.aggregation import weights
from dagrpo.algorithms.divergence import k3
from dagrpo.algorithms.losses import aggregation_of, loss_of
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.distributed import World
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.training import Training
from dagrpo.trainer.packing import Batch, TokenSequences, slices
from dagrpo.trainer.optimizer import apply_gradients, warmed_up
from dagrpo.trainer.policy import Policy, TokenLogprobs, token_logprobs


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
    """Over the completions of this process until they are summed over all."""

    loss: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0

    def over(self, world: World) -> "_Sums":
        summed = world.all_reduce(torch.tensor([self.loss, self.kl, self.clipped], dtype=torch.float64))
        return _Sums(*summed.tolist())


class PolicyUpdate:
    """Turns rollouts and advantages into optimizer steps. Aggregation is the mean over the tokens of a mini-batch.

    Each process computes an equal part of every mini-batch; gradients are summed where the policy is sharded.
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
        pad_token_id: int,
        max_new_tokens: int,
        world: World,
    ) -> None:
        assert (reference is not None) == (algorithm.kl_coefficient > 0)
        self._policy = policy
        self._reference = reference
        self._optimizer = optimizer
        self._algorithm = algorithm
        self._training = training
        self._micro_batch_size = micro_batch_size
        self._temperature = temperature
        self._pad_token_id = pad_token_id
        self._max_new_tokens = max_new_tokens
        self._world = world

    def run(self, step: int, sequences: TokenSequences, advantages: torch.Tensor) -> Updated:
        """One pass over the rollouts of the step numbered from 0. advantages: [completions]."""
        seen = _Seen(sequences.lengths)
        if self._training.mini_batches > 1:
            self._see_all(sequences, seen)
        sums, grad_norms, learning_rate = _Sums(), 0.0, 0.0
        for number, span in enumerate(self._mini_batches(sequences)):
            update = step * self._training.mini_batches + number
            learning_rate = warmed_up(self._training.learning_rate, update, self._training.learning_rate_warmup_steps)
            self._accumulate(sequences, advantages, span, seen, sums)
            grad_norms += apply_gradients(self._optimizer, learning_rate, self._training.max_grad_norm)
        total, before, tokens = sums.over(self._world), seen.by_all(self._world), sum(sequences.lengths)
        return Updated(
            logprobs=before.logprobs,
            entropy=float(before.entropy.mean()),
            loss=total.loss / self._training.mini_batches,
            kl=total.kl / tokens,
            clip_fraction=total.clipped / tokens,
            grad_norm=grad_norms / self._training.mini_batches,
            learning_rate=learning_rate,
        )

    def _mini_batches(self, sequences: TokenSequences) -> Iterator[slice]:
        total = len(sequences.completions)
        return slices(total, total // self._training.mini_batches)

    def _own_rows(self, span: slice) -> Iterator[slice]:
        """The micro-batches of this process: every process has as many, as FSDP needs."""
        part, rest = divmod(span.stop - span.start, self._world.size)
        assert rest == 0, "checked with the parameters"
        start = span.start + self._world.rank * part
        for rows in slices(part, self._micro_batch_size):
            yield slice(start + rows.start, start + rows.stop)

    @torch.no_grad()
    def _see_all(self, sequences: TokenSequences, seen: "_Seen") -> None:
        """Note the logprobs of the policy that sampled, before the first of several mini-batches changes it."""
        for span in self._mini_batches(sequences):
            for rows in self._own_rows(span):
                seen.note(rows, token_logprobs(self._policy, self._batch(sequences, rows), self._temperature))

    def _accumulate(
        self, sequences: TokenSequences, advantages: torch.Tensor, span: slice, seen: "_Seen", sums: _Sums
    ) -> None:
        """Add the gradient of this process's part of one mini-batch."""
        aggregation = aggregation_of(self._algorithm.aggregation, self._algorithm.loss)
        for rows in self._own_rows(span):
            batch = self._batch(sequences, rows)
            outputs = token_logprobs(self._policy, batch, self._temperature)
            if self._training.mini_batches == 1:
                seen.note(rows, outputs)
            tokens = self._token_batch(batch, outputs, advantages[rows], seen.logprobs_of(rows))
            token_weights, denominator = weights(
                aggregation, batch.rows, sequences.lengths[span], max_new_tokens=self._max_new_tokens
            )
            loss = self._loss(tokens, token_weights, sums) * (1 / denominator)
            loss.backward()  # type: ignore[no-untyped-call]
            sums.loss += float(loss.detach())

    def _token_batch(
        self, batch: Batch, outputs: TokenLogprobs, advantages: torch.Tensor, before: torch.Tensor
    ) -> TokenBatch:
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = token_logprobs(self._reference, batch, self._temperature).logprobs
        old_logprobs = before.to(outputs.logprobs.device)
        return TokenBatch(
            logprobs=outputs.logprobs,
            old_logprobs=old_logprobs,
            rollout_logprobs=old_logprobs,
            reference_logprobs=reference,
            entropy=outputs.entropy,
            advantages=advantages.to(outputs.logprobs.device)[batch.rows],
            sequence=batch.rows,
            sequences=len(advantages),
        )

    def _loss(self, batch: TokenBatch, token_weights: torch.Tensor, sums: _Sums) -> torch.Tensor:
        """The weighted sum of the losses of a micro-batch."""
        result = loss_of(batch, self._algorithm.loss)
        if "clip_fraction" in result.metrics:
            sums.clipped += float(result.metrics["clip_fraction"])
        loss = (result.per_token * token_weights).sum()
        if batch.reference_logprobs is not None:
            divergence = k3(batch.logprobs, batch.reference_logprobs)
            sums.kl += float(divergence.detach().sum())
            loss = loss + self._algorithm.kl_coefficient * (divergence * token_weights).sum()
        return loss

    def _batch(self, sequences: TokenSequences, rows: slice) -> Batch:
        return sequences.batch(rows, self._pad_token_id, self._world.device)


class _Seen:
    """The logprobs of the policy that sampled, where this process has computed them; zero elsewhere. On the CPU."""

    def __init__(self, lengths: list[int]) -> None:
        self._ends = [0, *itertools.accumulate(lengths)]
        self._values = torch.zeros(2, self._ends[-1])  # logprobs, entropy

    def note(self, rows: slice, outputs: TokenLogprobs) -> None:
        self._values[:, self._tokens(rows)] = torch.stack([outputs.logprobs.detach(), outputs.entropy]).cpu()

    def logprobs_of(self, rows: slice) -> torch.Tensor:
        return self._values[0, self._tokens(rows)]

    def by_all(self, world: World) -> TokenLogprobs:
        logprobs, entropy = world.all_reduce(self._values)
        return TokenLogprobs(logprobs=logprobs, entropy=entropy)

    def _tokens(self, rows: slice) -> slice:
        return slice(self._ends[rows.start], self._ends[rows.stop])
