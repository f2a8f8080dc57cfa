"""The policy update of one GRPO step, by all ranks that train the policy together."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
from dagrpo.trainer.gates import advice_on_memory
from dagrpo.trainer.optimizer import apply_gradients, warmed_up
from dagrpo.trainer.packing import PaddedBatch, RolloutBatch, micro_batches, slices
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
        old = _OldLogprobs(batch.sequences.trained, self._world.device)
        if self._training.mini_batches > 1:  # of the policy that sampled: before the first of them changes it
            self._compute_old_logprobs(batch, old)
        sums, grad_norms, learning_rate = _Sums(self._world.device), 0.0, 0.0
        for number, span in enumerate(self._mini_batches(batch)):
            update = step * self._training.mini_batches + number
            learning_rate = warmed_up(self._training.learning_rate, update, self._training.learning_rate_warmup_steps)
            self._accumulate(batch, span, old, sums)
            grad_norms += apply_gradients(self._optimizer, learning_rate, self._training.max_grad_norm)
        total, everywhere = sums.over_ranks(self._world), old.of_all_ranks(self._world)
        tokens = sum(batch.sequences.trained)
        return UpdateStats(
            logprobs=everywhere.logprobs,
            entropy=float(everywhere.entropy.mean()),
            loss=total.pop("loss") / self._training.mini_batches,
            kl=total.pop("kl", 0.0) / tokens,
            metrics={name.removeprefix(_METRIC): value / tokens for name, value in total.items()},
            grad_norm=grad_norms / self._training.mini_batches,
            learning_rate=learning_rate,
        )

    def _mini_batches(self, batch: RolloutBatch) -> Iterator[slice]:
        total = len(batch.sequences)
        return slices(total, total // self._training.mini_batches)

    def _own_spans(self, span: slice) -> Iterator[slice]:
        """The micro-batches of this rank."""
        return micro_batches(span, self._micro_batch_size, self._world.rank, self._world.size)

    @torch.no_grad()
    def _compute_old_logprobs(self, batch: RolloutBatch, old: "_OldLogprobs") -> None:
        for span in self._mini_batches(batch):
            for part in self._own_spans(span):
                old.keep(part, token_logprobs(self._policy, self._padded(batch, part), self._temperature))

    def _accumulate(self, batch: RolloutBatch, span: slice, old: "_OldLogprobs", sums: "_Sums") -> None:
        """Add the gradient of this rank's part of one mini-batch."""
        lengths = batch.sequences.trained[span]
        for part in self._own_spans(span):
            padded = self._padded(batch, part)
            outputs = token_logprobs(self._policy, padded, self._temperature)
            if self._training.mini_batches == 1:
                old.keep(part, outputs)
            token_weights, denominator = weights(
                self._aggregation, padded.rows, lengths, max_new_tokens=self._max_new_tokens
            )
            tokens = self._token_batch(batch, part, padded, outputs, old)
            loss = self._loss(tokens, token_weights, sums) * (1 / denominator)
            loss.backward()  # type: ignore[no-untyped-call]
            sums.add("loss", loss)

    def _token_batch(
        self, batch: RolloutBatch, part: slice, padded: PaddedBatch, outputs: TokenLogprobs, old: "_OldLogprobs"
    ) -> TokenBatch:
        device, reference = self._world.device, None
        if self._reference is not None:
            with torch.no_grad():
                reference = token_logprobs(self._reference, padded, self._temperature).logprobs
        return TokenBatch(
            logprobs=outputs.logprobs,
            old_logprobs=old.of(part),
            rollout_logprobs=batch.rollout_logprobs[old.tokens(part)].to(device, non_blocking=True),
            reference_logprobs=reference,
            entropy=outputs.entropy,
            advantages=batch.advantages[part].to(device, non_blocking=True)[padded.rows],
            sequence=padded.rows,
            sequences=padded.sequences,
        )

    def _loss(self, tokens: TokenBatch, token_weights: Tensor, sums: "_Sums") -> Tensor:
        """The weighted sum of the losses of a micro-batch's tokens."""
        result = loss_of(tokens, self._algorithm.loss)
        for name, value in result.metrics.items():
            sums.add(_METRIC + name, value)
        loss = (result.per_token * token_weights).sum()
        if tokens.reference_logprobs is not None:
            divergence = k3(tokens.logprobs, tokens.reference_logprobs)
            sums.add("kl", divergence.sum())
            loss = loss + self._algorithm.kl_coefficient * (divergence * token_weights).sum()
        return loss

    def _padded(self, batch: RolloutBatch, part: slice) -> PaddedBatch:
        return batch.sequences.padded(part, self._pad_token_id, self._world.device)


class _Sums:
    """Sums by name over the micro-batches of this rank, in double; they stay on the device until the step's end."""

    def __init__(self, device: torch.device) -> None:
        self._values: defaultdict[str, Tensor] = defaultdict(
            lambda: torch.zeros((), dtype=torch.float64, device=device)
        )

    def add(self, name: str, value: Tensor) -> None:
        self._values[name] += value.detach()

    def over_ranks(self, world: World) -> dict[str, float]:
        """The sums over all ranks, which have the same names."""
        totals = world.all_reduce(torch.stack(list(self._values.values())).cpu())
        return dict(zip(self._values, totals.tolist(), strict=True))


class _OldLogprobs:
    """Logprobs and entropy of the policy that sampled, where this rank has computed them; zero elsewhere."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self._ends = [0, *itertools.accumulate(lengths)]
        self._values = torch.zeros(2, self._ends[-1], device=device)  # logprobs, entropy

    def keep(self, part: slice, outputs: TokenLogprobs) -> None:
        self._values[:, self.tokens(part)] = torch.stack([outputs.logprobs.detach(), outputs.entropy])

    def of(self, part: slice) -> Tensor:
        """Of some sequences. [tokens]"""
        return self._values[0, self.tokens(part)]

    def of_all_ranks(self, world: World) -> TokenLogprobs:
        """Of all sequences, on the CPU."""
        logprobs, entropy = world.all_reduce(self._values.cpu())
        return TokenLogprobs(logprobs=logprobs, entropy=entropy)

    def tokens(self, part: slice) -> slice:
        """Where the trained tokens of some sequences are."""
        return slice(self._ends[part.start], self._ends[part.stop])
