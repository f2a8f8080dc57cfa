"""The policy update of one GRPO step, by all ranks that train the policy together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dagrpo.algorithms.aggregation import Lengths
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch
from dagrpo.distributed import World
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.training import Training
from dagrpo.rollout.seeds import sampling_seed
from dagrpo.trainer.accumulated import BeforeUpdate, StepTokens, Sums
from dagrpo.trainer.digest_table import StepDigests, TensorDigests
from dagrpo.trainer.digests import computed_by, gradient_digests, weight_digests
from dagrpo.trainer.gates import advice_on_memory
from dagrpo.trainer.gates.finite import finite_everywhere, finite_or_zero
from dagrpo.trainer.objective import Objective
from dagrpo.trainer.optimizer import clipped_norm, gradient_norm, take_step, warmed_up
from dagrpo.trainer.packing import NOTHING, PaddedBatch, RolloutBatch, micro_batches
from dagrpo.trainer.policy import Policy, TokenLogprobs, token_logprobs
from dagrpo.trainer.tower import tower_module


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What one step's update saw and did."""

    logprobs: Tensor  # [tokens], of the policy that sampled, as the trainer computes them; on the CPU
    # From here on of the tokens that count, and of the mini-batches that have some.
    entropy: float  # nats per token, of that policy
    loss: float
    kl: float  # to the reference, 0 without one
    metrics: Mapping[str, float]  # of the loss and what is beside it, per token
    grad_norm: float  # before clipping, mean over mini-batches
    learning_rate: float
    digests: StepDigests  # of gradients and weights
    vision_grad_norm: float | None = None  # as grad_norm, of the vision tower alone; None: none is trained
    skipped: int = 0  # mini-batches whose update was skipped, since a loss or a gradient was not finite


@dataclass(frozen=True, slots=True, kw_only=True)
class _MiniBatch:
    """Which part of a step's rollouts one optimizer update sees."""

    spans: Sequence[slice]  # the sequences of each of its trajectories
    lengths: Lengths  # of its trajectories
    positive: Lengths  # of those with a right answer, 0 for the others
    selected: Tensor | None  # [trained tokens of the mini-batch], on the CPU; of the loss
    update: int  # from 0, over the run
    has_numbers: bool  # whether all advantages that count are finite


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
        seed: int = 0,
        coefficients: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """`coefficients`: those of the terms, where they are not those that the run began with."""
        assert (reference is not None) == (algorithm.kl.coefficient > 0)
        self.objective = Objective(algorithm, max_new_tokens, coefficients)
        self._policy = policy
        self._reference = reference
        self._optimizer = optimizer
        self._select = LOSSES.get(algorithm.loss.name).select
        self._loss_config = algorithm.loss
        self._training = training
        self._micro_batch_size = micro_batch_size
        self._temperature = temperature
        self._pad_token_id = pad_token_id
        self._world = world
        self._seed = seed
        self._trained_tower = _trained_tower(policy)

    def before(self, batch: RolloutBatch) -> BeforeUpdate | None:
        """Every token of a step under the policy that sampled it, in every rank. Costs a forward pass.

        None where nothing asks for it: one update sees those logprobs itself.
        """
        if self._training.mini_batches == 1 and not self.objective.looks_ahead:
            return None
        return self.computed_before(batch)

    def computed_before(self, batch: RolloutBatch) -> BeforeUpdate:
        """The same, whether anything asks for it or not."""
        with advice_on_memory("runtime.training.micro_batch_size", self._micro_batch_size), torch.no_grad():
            return self._computed_before(batch)

    def run(self, step: int, batch: RolloutBatch, before: BeforeUpdate | None = None) -> UpdateStats:
        """One pass over the rollouts of the step numbered from 0, which have advantages by now.

        `before`: what the method of that name has returned for them, where it was called. UserError: no memory, or a
        gradient that is not finite.
        """
        before = self.before(batch) if before is None else before
        with advice_on_memory("runtime.training.micro_batch_size", self._micro_batch_size):
            stats = self._run(step, batch, before)
        for policy in filter(None, (self._policy, self._reference)):
            policy.forget_pictures()
        return stats

    def _run(self, step: int, batch: RolloutBatch, before: BeforeUpdate | None) -> UpdateStats:
        seen = StepTokens(batch.sequences.trained, self._world.device)
        if before is not None:
            seen.fill(before)
        sums, learning_rate, idle = Sums(self._world.device), 0.0, 0
        grad_norms: list[float | None] = []
        every = self._training.digests_every
        gradients: list[TensorDigests] | None = [] if every and (step + 1) % every == 0 else None
        of_tower: list[float] = []
        for number in range(self._training.mini_batches):
            mini_batch = self._mini_batch(step, number, batch, before)
            learning_rate = warmed_up(
                self._training.learning_rate, mini_batch.update, self._training.learning_rate_warmup_steps
            )
            if mini_batch.spans:  # else all of its trajectories were left out, as every rank knows
                losses = self._accumulate(batch, mini_batch, seen, sums, is_first=before is None)
                if gradients is not None:
                    gradients.append(gradient_digests(self._policy.model, self._world))
                of_tower += [gradient_norm(self._trained_tower)] if self._trained_tower else []
                grad_norms.append(self._apply(mini_batch, losses, learning_rate))
                idle += not any(mini_batch.lengths.tokens)
        assert grad_norms, "refused before: a step without a single trajectory to learn from"
        total = sums.over_ranks(self._world)
        old = seen.of_all_ranks(self._world) if before is None else before
        counted = batch.counted_tokens()
        entropy, tokens = float(old.entropy[counted].mean()) if counted.any() else 0.0, max(int(counted.sum()), 1)
        coefficients, updates = self.objective.adapted(entropy), max(len(grad_norms) - idle, 1)
        if None in grad_norms:
            total, entropy = finite_or_zero(total), finite_or_zero({"entropy": entropy})["entropy"]
        return UpdateStats(
            logprobs=old.logprobs,
            entropy=entropy,
            loss=total.pop("loss") / updates,
            kl=total.pop("kl", 0.0) / tokens,
            metrics={name: value / tokens for name, value in total.items()} | coefficients,
            grad_norm=sum(norm or 0.0 for norm in grad_norms) / updates,
            learning_rate=learning_rate,
            digests=self._digests(gradients),
            vision_grad_norm=sum(of_tower) / updates if self._trained_tower else None,
            skipped=grad_norms.count(None),
        )

    def _digests(self, gradients: Sequence[TensorDigests] | None) -> StepDigests:
        """With those of the weights beside them; None: the step is none that is recorded."""
        computed = computed_by(self._world, self._micro_batch_size)
        if gradients is None:
            return StepDigests(computed=computed, gradients=(), weights={})
        weights = weight_digests(self._policy.model, self._world)
        return StepDigests(computed=computed, gradients=tuple(gradients), weights=weights)

    def _apply(self, mini_batch: _MiniBatch, losses: Tensor, learning_rate: float) -> float | None:
        """The gradient's norm: 0 without an update where no sequence counts.

        None: it, a loss or an advantage is not finite in some rank, and nothing was updated in any.
        """
        if not any(mini_batch.lengths.tokens):
            self._optimizer.zero_grad(set_to_none=True)
            return 0.0
        norm = clipped_norm(self._optimizer, self._training.max_grad_norm)
        # A loss that reads no advantages is finite whatever the rewards are.
        if not mini_batch.has_numbers or not finite_everywhere(
            torch.stack([losses, losses.new_tensor(norm)]), self._world
        ):
            self._optimizer.zero_grad(set_to_none=True)
            return None
        take_step(self._optimizer, learning_rate)
        return norm

    def _spans(self, batch: RolloutBatch, number: int) -> list[slice]:
        """The sequences of each trajectory of one mini-batch. It has as many prompts as any other."""
        size = self._training.prompts_per_step // self._training.mini_batches * self._training.samples_per_prompt
        return batch.spans(size * number, size * (number + 1))

    def _mini_batch(self, step: int, number: int, batch: RolloutBatch, before: BeforeUpdate | None) -> _MiniBatch:
        spans, update = self._spans(batch, number), step * self._training.mini_batches + number
        tokens = [sum(batch.sequences.trained[span]) if batch.counts(span.start) else 0 for span in spans]
        prompts = [int(batch.trajectories[span.start]) // self._training.samples_per_prompt for span in spans]
        right = [bool(batch.positive[span.start]) for span in spans]
        positive = [each if is_right else 0 for each, is_right in zip(tokens, right, strict=True)]
        return _MiniBatch(
            spans=spans,
            lengths=Lengths(tokens=tokens, prompts=prompts),
            positive=Lengths(tokens=positive, prompts=prompts),
            selected=self._selected(update, batch, spans, before),
            update=update,
            has_numbers=_are_finite(batch, spans),
        )

    def _selected(
        self, update: int, batch: RolloutBatch, spans: Sequence[slice], before: BeforeUpdate | None
    ) -> Tensor | None:
        if self._select is None or not spans:
            return None
        assert before is not None
        assert batch.advantages is not None
        tokens = batch.tokens(slice(spans[0].start, spans[-1].stop))
        counted = torch.tensor([batch.counts(span.start) for span in spans])
        counted = counted.repeat_interleave(torch.tensor([sum(batch.sequences.trained[span]) for span in spans]))
        if not bool(counted.any()):
            return torch.zeros(len(counted))
        whole = MiniBatch(
            logprobs=before.logprobs[tokens][counted],
            entropy=before.entropy[tokens][counted],
            advantages=batch.advantages[tokens][counted],
            seed=sampling_seed(self._seed, "select", update, 0, 0),
        )
        chosen = self._select(whole, self._loss_config)
        return chosen.new_zeros(len(counted)).masked_scatter(counted, chosen)

    def _own_parts(self, spans: Sequence[slice]) -> list[slice]:
        """The micro-batches of this rank."""
        return micro_batches(spans, self._micro_batch_size, self._world.rank, self._world.size)

    def _computed_before(self, batch: RolloutBatch) -> BeforeUpdate:
        seen = StepTokens(batch.sequences.trained, self._world.device)
        extras = self.objective.extras_before
        # Cut as the updates are, so that the first of them sees the same bits.
        for number in range(self._training.mini_batches):
            for part in self._own_parts(self._spans(batch, number)):
                padded = self._padded(batch, part)
                reference = self._reference_logprobs(padded) if self.objective.penalises else None
                seen.keep(part, token_logprobs(self._policy, padded, self._temperature, extras), reference)
        return seen.of_all_ranks(self._world)

    def _accumulate(
        self, batch: RolloutBatch, mini_batch: _MiniBatch, seen: StepTokens, sums: Sums, *, is_first: bool
    ) -> Tensor:
        """Add the gradient of this rank's part of one mini-batch; the sum of its losses."""
        losses = torch.zeros((), device=self._world.device)
        starts = {span.start: place for place, span in enumerate(mini_batch.spans)}
        for part in self._own_parts(mini_batch.spans):
            padded = self._padded(batch, part)
            outputs = token_logprobs(self._policy, padded, self._temperature, self.objective.extras)
            if is_first:
                seen.keep(part, outputs)
            counts = batch.counts_any(part)
            tokens = self._token_batch(batch, mini_batch, part, padded, outputs, seen)
            loss, measured = self.objective.loss(
                tokens, mini_batch.lengths, mini_batch.positive, starts.get(part.start, 0), counts=counts
            )
            loss.backward()  # type: ignore[no-untyped-call]
            losses += loss.detach()
            sums.add({**measured, "loss": loss}, counts=counts)
        return losses

    def _reference_logprobs(self, padded: PaddedBatch) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return token_logprobs(self._reference, padded, self._temperature).logprobs

    def _token_batch(
        self,
        batch: RolloutBatch,
        mini_batch: _MiniBatch,
        part: slice,
        padded: PaddedBatch,
        outputs: TokenLogprobs,
        seen: StepTokens,
    ) -> TokenBatch:
        device = self._world.device
        # A penalty in the reward has asked for the reference before: it is not run again.
        known = self.objective.penalises
        reference = seen.reference_logprobs(part) if known else self._reference_logprobs(padded)
        if not batch.counts_any(part):
            return _filler(outputs, reference)
        assert batch.advantages is not None
        # A sequence, to losses and weights, is all that the policy wrote in a trajectory, over all of its samples.
        _, trajectory = batch.trajectories[part].unique_consecutive(return_inverse=True)  # type: ignore[no-untyped-call]
        tokens = batch.tokens(part)
        first = batch.tokens(mini_batch.spans[0]).start
        own = slice(tokens.start - first, tokens.stop - first)
        selected = None if mini_batch.selected is None else mini_batch.selected[own].to(device, non_blocking=True)
        teacher = (
            None if batch.teacher_logprobs is None else batch.teacher_logprobs[tokens].to(device, non_blocking=True)
        )
        seen_by_losses = TokenBatch(
            logprobs=outputs.logprobs,
            old_logprobs=seen.old_logprobs(part),
            rollout_logprobs=batch.rollout_logprobs[tokens].to(device, non_blocking=True),
            reference_logprobs=reference,
            entropy=outputs.entropy,
            advantages=batch.advantages[tokens].to(device, non_blocking=True),
            positive=batch.positive[part].to(device, non_blocking=True)[padded.rows],
            sequence=trajectory.to(device, non_blocking=True)[padded.rows],
            sequences=int(trajectory[-1]) + 1,
            selected=selected,
            teacher_logprobs=teacher,
        )
        return (
            seen_by_losses
            if batch.counted is None
            else seen_by_losses.only(batch.counted[part].to(device)[padded.rows])
        )

    def _padded(self, batch: RolloutBatch, part: slice) -> PaddedBatch:
        if part == NOTHING:
            return PaddedBatch.filler(self._pad_token_id, self._world.device)
        return batch.padded(part, self._pad_token_id, self._world.device)


def _are_finite(batch: RolloutBatch, spans: Sequence[slice]) -> bool:
    """Whether the advantages of these trajectories are, where they count: the same in every rank."""
    assert batch.advantages is not None
    if not spans:
        return True
    tokens = batch.tokens(slice(spans[0].start, spans[-1].stop))
    return bool(batch.advantages[tokens][batch.counted_tokens()[tokens]].isfinite().all())


def _trained_tower(policy: Policy) -> list[torch.nn.Parameter]:
    """What is trained of the vision tower; [] without one, or of one that is frozen."""
    module = tower_module(policy.model)
    return [] if module is None else [weight for weight in module.parameters() if weight.requires_grad]


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
        positive=torch.zeros_like(logprobs, dtype=torch.bool),
        sequence=torch.zeros_like(logprobs, dtype=torch.int64),
        sequences=1,
        selected=torch.zeros_like(logprobs),
        teacher_logprobs=logprobs,
    )
