"""Policy update of one GRPO step, by all ranks together."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dagrpo.algorithms.config import Algorithm
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.fsdp import reduce_next
from dagrpo.trainer.model.memory import advice_on_memory
from dagrpo.trainer.model.optimizer import (
    LossScale,
    clip_gradients,
    finite_everywhere,
    gradient_norm,
    take_step,
    warmed_up,
)
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
from dagrpo.trainer.update.advantages import step_advantages
from dagrpo.trainer.update.mini_batches import ForwardPasses, MiniBatch, MiniBatchSplitter, loss_input
from dagrpo.trainer.update.objective import Objective
from dagrpo.trainer.update.stats import BeforeUpdate, StepTokens, Sums, UpdateStats, finite_or_zero
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
        """Prepare the update. `budget`: one that the policy supports, see model/prepare.py. `hashed_by`: None for the device's default.

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
        tower = tower_module(policy.model)
        self._trained_tower = [] if tower is None else [each for each in tower.parameters() if each.requires_grad]
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
        return self.compute_before(batch)

    def compute_before(self, batch: Batch) -> BeforeUpdate:
        """Compute the logprobs before the update unconditionally (see `before`)."""
        objective, world = self.objective, self._world
        seen = StepTokens.zeros(
            len(batch.rollout_logprobs),
            world.device,
            collision=objective.extras_before.collision,
            reference_logprobs=objective.penalises,
        )
        with advice_on_memory(*self._passes.limit_of_memory), torch.no_grad():
            splitter = self._passes.splitter(batch)
            # Cut into the micro-batches of the updates: the shape of a batch decides the last bits, and with the same bits the first
            # update's ratio to these logprobs is exactly 1.
            for number in range(self._training.mini_batches):
                spans = splitter.arrange(self._mini_batches.spans(batch, number), world.size)
                for part in splitter.micro_batches(spans, world.rank, world.size):
                    micro_batch, places = self._passes.lay_out(batch, part), batch.sequences.trained_places(part)
                    reference = self._passes.of_reference(micro_batch) if objective.penalises else None
                    seen.keep(places, self._passes.of_policy(micro_batch, objective.extras_before), reference)
            return seen.of_all_ranks(world)

    def run(self, step: int, batch: Batch, before: BeforeUpdate | None = None) -> UpdateStats:
        """Update on the rollouts of `step` (0-based), whose advantages are set, in one pass.

        `before`: the result of the method `before` for them, if it was called. Raises UserError if memory runs out, or if
        a gradient is not finite.
        """
        before = self.before(batch) if before is None else before
        with advice_on_memory(*self._passes.limit_of_memory):
            stats = self._updated(step, batch, before)
        self._passes.forget_pictures()
        return stats

    def _updated(self, step: int, batch: Batch, before: BeforeUpdate | None) -> UpdateStats:
        training, world, device = self._training, self._world, self._world.device
        # With a single update nothing was computed before: the update notes the logprobs that it computes itself.
        seen = StepTokens.of(before, device) if before else StepTokens.zeros(len(batch.rollout_logprobs), device)
        sums, splitter, self._overflowed = Sums(device), self._passes.splitter(batch), 0
        records = self._digests_every > 0 and (step + 1) % self._digests_every == 0
        pending: list[PendingDigests] = []
        grad_norms: list[float | None] = []  # None: of an update that was skipped
        tower_norms: list[float] = []
        learning_rate, idle = 0.0, 0
        for number in range(training.mini_batches):
            mini_batch = self._mini_batches.of(step, number, batch, before, splitter)
            learning_rate = warmed_up(training.learning_rate, mini_batch.update, training.learning_rate_warmup_steps)
            if not mini_batch.spans:  # all of its trajectories were left out, as every rank knows
                continue
            losses = self._accumulate(batch, mini_batch, seen, sums, is_first=before is None)
            # Digests are of the gradient as the backward passes leave it: to apply it clips it in place, then drops it.
            # They wait on the device; reading one here would have it idle in every update.
            if records:
                pending.append(gradient_digests(self._policy.model, world, self._hashed_by))
            if self._trained_tower:
                tower_norms.append(gradient_norm(self._trained_tower))
            grad_norms.append(self._apply(mini_batch, losses, learning_rate))
            idle += not any(mini_batch.lengths.tokens)
        assert grad_norms, "refused before: a step without a single trajectory to learn from"
        # Collectives from here on, in the same order in every rank: sums, tokens, then all digests in one.
        total = sums.over_ranks(world)
        old = seen.of_all_ranks(world) if before is None else before
        counted = batch.counted_tokens()
        entropy, tokens = float(old.entropy[counted].mean()) if counted.any() else 0.0, max(int(counted.sum()), 1)
        coefficients, updates = self.objective.adapt_coefficients(entropy), max(len(grad_norms) - idle, 1)
        if None in grad_norms:
            total, entropy = finite_or_zero(total), finite_or_zero({"entropy": entropy})["entropy"]
        if records:  # weights last: those after the step's last update
            pending.append(weight_digests(self._policy.model, world, self._hashed_by))
        *of_gradients, of_weights = read(pending, world) if records else [{}]
        return UpdateStats(
            logprobs=old.logprobs,
            entropy=entropy,
            loss=total.pop("loss") / updates,
            kl=total.pop("kl", 0.0) / tokens,
            metrics={name: value / tokens for name, value in total.items()} | coefficients,
            grad_norm=sum(norm or 0.0 for norm in grad_norms) / updates,
            learning_rate=learning_rate,
            digests=StepDigests(
                computed=computed_by(world, self._budget, self._hashed_by),
                gradients=tuple(of_gradients),
                weights=of_weights,
            ),
            advantages=batch.advantages,
            entropies=old.entropy,
            vision_grad_norm=sum(tower_norms) / updates if self._trained_tower else None,
            skipped=grad_norms.count(None),
            overflowed=self._overflowed,
            loss_scale=None if self.loss_scale is None else self.loss_scale.value,
        )

    def _apply(self, mini_batch: MiniBatch, losses: Tensor, learning_rate: float) -> float | None:
        """Update the weights and return the gradient's norm: 0, without an update, if no sequence counts.

        Returns None if the norm, a loss or an advantage is not finite in some rank: then no rank updates.
        """
        if not any(mini_batch.lengths.tokens):
            self._optimizer.zero_grad(set_to_none=True)
            return 0.0
        norm = clip_gradients(self._optimizer, self._training.max_grad_norm)
        is_finite = False
        # A loss that reads no advantages is finite whatever the rewards are.
        if mini_batch.has_numbers:
            is_finite = finite_everywhere(torch.stack([losses, losses.new_tensor(norm)]), self._world)
            # Finite losses with a gradient that is not are an overflow of the scaled loss: halve the scale, and go on.
            if self.loss_scale is not None and (is_finite or finite_everywhere(losses, self._world)):
                self._overflowed += self.loss_scale.adapt(is_finite=is_finite)
        if not is_finite:
            self._optimizer.zero_grad(set_to_none=True)
            return None
        take_step(self._optimizer, learning_rate)
        return norm

    def _accumulate(
        self, batch: Batch, mini_batch: MiniBatch, seen: StepTokens, sums: Sums, *, is_first: bool
    ) -> Tensor:
        """Add the gradient of this rank's part of one mini-batch; return the sum of its losses."""
        losses = torch.zeros((), device=self._world.device)
        starts = {span.start: place for place, span in enumerate(mini_batch.spans)}
        for number, part in enumerate(mini_batch.parts, start=1):
            # Ranks add up their gradients in the last backward pass of a mini-batch, or in each (runtime.training.reduce_gradients).
            reduce_next(self._policy, self._budget.reduce_gradients, is_last=number == len(mini_batch.parts))
            micro_batch = self._passes.lay_out(batch, part)
            outputs = self._passes.of_policy(micro_batch, self.objective.extras)
            if is_first:
                seen.keep(batch.sequences.trained_places(part), outputs)
            counts = batch.counts_any(part)
            # A penalty in the reward has computed the reference's logprobs before the update.
            reference = (
                seen.reference_logprobs(batch.sequences.trained_places(part))
                if self.objective.penalises
                else self._passes.of_reference(micro_batch)
            )
            tokens = loss_input(
                batch,
                mini_batch,
                part,
                micro_batch=micro_batch,
                outputs=outputs,
                reference=reference,
                step_tokens=seen,
                device=self._world.device,
            )
            first = starts[part[0]] if part else 0
            loss, measured = self.objective.loss(tokens, mini_batch.lengths, mini_batch.positive, first, counts=counts)
            # float16 has no room for small gradients: they are of the loss times a scale, and divided by it before the norm is taken.
            scaled = loss if self.loss_scale is None else loss * self.loss_scale.value
            scaled.backward()  # type: ignore[no-untyped-call]
            losses += loss.detach()
            sums.add({**measured, "loss": loss}, counts=counts)
        if self.loss_scale is not None:
            self.loss_scale.unscale(self._policy.parameters())
        return losses
