"""Policy update of one GRPO step, by all ranks together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dagrpo.algorithms.config import Algorithm
from dagrpo.trainer.batches.batch import Batch, MicroBatch
from dagrpo.trainer.batches.budget import Budget
from dagrpo.trainer.batches.micro_batches import Part
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.fsdp import reduce_next
from dagrpo.trainer.model.loss_scale import LossScale
from dagrpo.trainer.model.memory import advice_on_memory
from dagrpo.trainer.model.optimizer import clipped_norm, finite_everywhere, gradient_norm, take_step, warmed_up
from dagrpo.trainer.model.policy import Policy, Reference
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.trainer.state.digest_table import Hash, StepDigests
from dagrpo.trainer.state.digests import (
    PendingDigests,
    computed_by,
    gradient_digests,
    read,
    recorded_every,
    usual_hash,
    weight_digests,
)
from dagrpo.trainer.update.accumulators import BeforeUpdate, StepTokens, Sums
from dagrpo.trainer.update.advantages import step_advantages
from dagrpo.trainer.update.forward import ForwardPasses
from dagrpo.trainer.update.loss_input import loss_input
from dagrpo.trainer.update.mini_batches import MiniBatch, MiniBatchSplitter
from dagrpo.trainer.update.objective import Objective
from dagrpo.trainer.update.stats import UpdateStats, finite_or_zero
from dagrpo.utils.distributed import World

# Among a state's notes:
COEFFICIENTS = "coefficients"  # of the objective's terms
LOSS_SCALE = "loss_scale"  # where the update computes in float16
NOT_SAVED: Mapping[str, Any] = {}


class PolicyUpdate:
    """Policy update: turns one step's rollouts into optimizer steps.

    Every rank computes an equal part of every mini-batch; gradients are summed where the policy is sharded.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        reference: Reference | None,
        optimizer: torch.optim.AdamW,
        algorithm: Algorithm,
        training: Training,
        budget: Budget,
        temperature: float,
        max_new_tokens: int,
        pad_token_id: int,
        world: World,
        seed: int = 0,
        saved: Mapping[str, Any] = NOT_SAVED,
        hashed_by: Hash | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the update. `budget`: one that the policy supports, see model/sharing.py. `hashed_by`: None for the device's default.

        `saved`: the notes of a state, which contain the property `saved`; {}: a new run.
        """
        assert (reference is not None) == (algorithm.kl.coefficient > 0)
        self.objective = Objective(algorithm, max_new_tokens, saved.get(COEFFICIENTS))
        self._policy = policy
        self._advantage = algorithm.advantage
        self._clock = clock or Clock()
        self._passes = ForwardPasses(
            policy=policy,
            reference=reference,
            budget=budget,
            temperature=temperature,
            pad_token_id=pad_token_id,
            device=world.device,
        )
        self._optimizer = optimizer
        self._mini_batches = MiniBatchSplitter(algorithm, training, world, seed)
        self._training = training
        self._budget = budget
        self._world = world
        self._hashed_by = hashed_by or usual_hash(world)
        trained = sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)
        self._digests_every = recorded_every(trained, training.digests_every)
        self._trained_tower = _trained_tower(policy)
        self.loss_scale = LossScale(saved.get(LOSS_SCALE)) if training.dtype == "float16" else None
        self._overflowed = 0  # of the step's updates

    @property
    def saved(self) -> dict[str, Any]:
        """Return the JSON-serialisable state of the update beside weights and optimizer."""
        scale = {} if self.loss_scale is None else {LOSS_SCALE: self.loss_scale.saved}
        return {COEFFICIENTS: dict(self.objective.coefficients), **scale}

    def update(self, step: int, batch: Batch, rollouts: Rollouts | None) -> UpdateStats:
        """Compute the advantages of rank 0's rollouts of `step` (0-based) and update on them. Every rank calls this.

        `batch`: the data of `rollouts`, which the other ranks do not have. Raises UserError as `run` does.
        """
        before = self.before(batch)
        advantages = None if rollouts is None else {"advantages": self.advantages(rollouts, before)}
        shared = self._world.broadcast_tensors(advantages)
        stats = self.run(step, replace(batch, advantages=shared["advantages"]), before)
        self._clock.lap("update")
        return stats

    def advantages(self, rollouts: Rollouts, before: BeforeUpdate | None) -> Tensor:
        """Return the advantages of a step's tokens, with the penalty in the reward if there is one. [tokens]"""
        penalty = None if before is None else self.objective.penalty(before.logprobs, before.reference_logprobs)
        return step_advantages(rollouts, self._advantage, before, penalty)

    def before(self, batch: Batch) -> BeforeUpdate | None:
        """Return every token of a step under the policy before its first update, in every rank. Costs a forward pass.

        None if nothing needs it: a single update computes those logprobs itself.
        """
        if self._training.mini_batches == 1 and not self.objective.looks_ahead:
            return None
        return self.computed_before(batch)

    def computed_before(self, batch: Batch) -> BeforeUpdate:
        """Compute the logprobs before the update unconditionally (see `before`)."""
        with advice_on_memory(*self._passes.limit_of_memory), torch.no_grad():
            return self._computed_before(batch)

    def run(self, step: int, batch: Batch, before: BeforeUpdate | None = None) -> UpdateStats:
        """Update on the rollouts of `step` (0-based), whose advantages are set, in one pass.

        `before`: the result of the method `before` for them, if it was called. Raises UserError if memory runs out, or if
        a gradient is not finite.
        """
        before = self.before(batch) if before is None else before
        with advice_on_memory(*self._passes.limit_of_memory):
            stats = self._run(step, batch, before)
        self._passes.forget_pictures()
        return stats

    def _run(self, step: int, batch: Batch, before: BeforeUpdate | None) -> UpdateStats:
        device, tokens = self._world.device, len(batch.rollout_logprobs)
        seen = StepTokens.zeros(tokens, device) if before is None else StepTokens.of(before, device)
        sums, learning_rate, idle = Sums(self._world.device), 0.0, 0
        self._overflowed = 0
        grad_norms: list[float | None] = []
        every = self._digests_every
        gradients: list[PendingDigests] | None = [] if every and (step + 1) % every == 0 else None
        of_tower: list[float] = []
        splitter = self._passes.splitter(batch)
        for number in range(self._training.mini_batches):
            mini_batch = self._mini_batches.of(step, number, batch, before, splitter)
            learning_rate = warmed_up(
                self._training.learning_rate, mini_batch.update, self._training.learning_rate_warmup_steps
            )
            if mini_batch.spans:  # else all of its trajectories were left out, as every rank knows
                losses = self._accumulate(batch, mini_batch, seen, sums, is_first=before is None)
                if gradients is not None:
                    gradients.append(gradient_digests(self._policy.model, self._world, self._hashed_by))
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
            advantages=batch.advantages,
            vision_grad_norm=sum(of_tower) / updates if self._trained_tower else None,
            skipped=grad_norms.count(None),
            overflowed=self._overflowed,
            loss_scale=None if self.loss_scale is None else self.loss_scale.value,
        )

    def _digests(self, gradients: Sequence[PendingDigests] | None) -> StepDigests:
        """Return the digests of gradients and weights; gradients None: the step's digests are not recorded."""
        computed = computed_by(self._world, self._budget, self._hashed_by)
        if gradients is None:
            return StepDigests(computed=computed, gradients=(), weights={})
        weights = weight_digests(self._policy.model, self._world, self._hashed_by)
        *of_gradients, of_weights = read([*gradients, weights], self._world)
        return StepDigests(computed=computed, gradients=tuple(of_gradients), weights=of_weights)

    def _apply(self, mini_batch: MiniBatch, losses: Tensor, learning_rate: float) -> float | None:
        """Update the weights and return the gradient's norm: 0, without an update, if no sequence counts.

        Returns None if the norm, a loss or an advantage is not finite in some rank: then no rank updates.
        """
        if not any(mini_batch.lengths.tokens):
            self._optimizer.zero_grad(set_to_none=True)
            return 0.0
        norm = clipped_norm(self._optimizer, self._training.max_grad_norm)
        # A loss that reads no advantages is finite whatever the rewards are.
        if not mini_batch.has_numbers or not self._all_finite(losses, norm):
            self._optimizer.zero_grad(set_to_none=True)
            return None
        take_step(self._optimizer, learning_rate)
        return norm

    def _all_finite(self, losses: Tensor, norm: float) -> bool:
        """Return True if all ranks' losses and the gradient's norm are finite; adapt the loss scale if the losses are."""
        is_finite = finite_everywhere(torch.stack([losses, losses.new_tensor(norm)]), self._world)
        if self.loss_scale is not None and (is_finite or finite_everywhere(losses, self._world)):
            self._overflowed += self.loss_scale.adapt(is_finite=is_finite)
        return is_finite

    def _computed_before(self, batch: Batch) -> BeforeUpdate:
        extras, splitter = self.objective.extras_before, self._passes.splitter(batch)
        seen = StepTokens.zeros(
            len(batch.rollout_logprobs),
            self._world.device,
            collision=extras.collision,
            reference_logprobs=self.objective.penalises,
        )
        # Cut as the updates are, so that the first update computes the same bits.
        for number in range(self._training.mini_batches):
            spans = splitter.arranged(self._mini_batches.spans(batch, number), self._world.size)
            for part in splitter.micro_batches(spans, self._world.rank, self._world.size):
                micro_batch, places = self._passes.laid_out(batch, part), batch.sequences.trained_places(part)
                reference = self._passes.of_reference(micro_batch) if self.objective.penalises else None
                seen.keep(places, self._passes.of_policy(micro_batch, extras), reference)
        return seen.of_all_ranks(self._world)

    def _accumulate(
        self, batch: Batch, mini_batch: MiniBatch, seen: StepTokens, sums: Sums, *, is_first: bool
    ) -> Tensor:
        """Add the gradient of this rank's part of one mini-batch; return the sum of its losses."""
        losses = torch.zeros((), device=self._world.device)
        starts = {span.start: place for place, span in enumerate(mini_batch.spans)}
        for number, part in enumerate(mini_batch.parts, start=1):
            reduce_next(self._policy, self._budget.reduce_gradients, is_last=number == len(mini_batch.parts))
            micro_batch = self._passes.laid_out(batch, part)
            outputs = self._passes.of_policy(micro_batch, self.objective.extras)
            if is_first:
                seen.keep(batch.sequences.trained_places(part), outputs)
            counts = batch.counts_any(part)
            tokens = loss_input(
                batch,
                mini_batch,
                part,
                micro_batch=micro_batch,
                outputs=outputs,
                reference=self._reference_in_update(batch, part, micro_batch, seen),
                step_tokens=seen,
                device=self._world.device,
            )
            first = starts[part[0]] if part else 0
            loss, measured = self.objective.loss(tokens, mini_batch.lengths, mini_batch.positive, first, counts=counts)
            scaled = loss if self.loss_scale is None else loss * self.loss_scale.value
            scaled.backward()  # type: ignore[no-untyped-call]
            losses += loss.detach()
            sums.add({**measured, "loss": loss}, counts=counts)
        if self.loss_scale is not None:
            self.loss_scale.unscale(self._policy.parameters())
        return losses

    def _reference_in_update(
        self, batch: Batch, part: Part, micro_batch: MicroBatch, seen: StepTokens
    ) -> Tensor | None:
        """Return the reference's logprobs: those that a penalty in the reward has computed before the update, if any."""
        if self.objective.penalises:
            return seen.reference_logprobs(batch.sequences.trained_places(part))
        return self._passes.of_reference(micro_batch)


def _trained_tower(policy: Policy) -> list[torch.nn.Parameter]:
    """Return the trained parameters of the vision tower; [] without one, or if it is frozen."""
    module = tower_module(policy.model)
    return [] if module is None else [weight for weight in module.parameters() if weight.requires_grad]
