"""Mini-batches of a step, with their forward passes and loss input.

batches/micro_batches.py cuts them to fit into memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dagrpo.algorithms.aggregation import Lengths
from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.tokens import MiniBatch as SelectableTokens
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.batches.batch import Batch, MicroBatch, PaddedBatch
from dagrpo.trainer.batches.micro_batches import NOTHING, Budget, MicroBatchSplitter, Part
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.head import PLAIN, Extras
from dagrpo.trainer.model.policy import Policy, Reference, TokenLogprobs, token_logprobs
from dagrpo.trainer.update.stats import BeforeUpdate, StepTokens
from dagrpo.utils.distributed import World


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """Part of a step's rollouts that one optimizer update sees."""

    spans: Sequence[slice]  # the sequences of each of its trajectories, in the order in which they are cut
    lengths: Lengths  # of its trajectories, in that order
    positive: Lengths  # of those with a right answer, 0 for the others
    parts: Sequence[Part]  # this rank's micro-batches
    first_token: int  # where its trained tokens begin, among those of the step
    selected: Tensor | None  # [trained tokens of the mini-batch, as in the step], on the CPU; of the loss
    update: int  # from 0, over the run
    has_numbers: bool  # whether all advantages that count are finite


class MiniBatchSplitter:
    """Splitter of each step's rollouts into the mini-batches of its updates, by prompts."""

    def __init__(self, algorithm: Algorithm, training: Training, world: World, seed: int) -> None:
        """Divide by section training. `seed`: of the run, from which the random token selection of a loss follows."""
        self._select = LOSSES.get(algorithm.loss.name).select
        self._loss_config = algorithm.loss
        self._training = training
        self._world = world
        self._seed = seed

    def spans(self, batch: Batch, number: int) -> list[slice]:
        """Return the sequences of each trajectory of one mini-batch. All mini-batches have the same number of prompts."""
        size = self._training.prompts_per_step // self._training.mini_batches * self._training.samples_per_prompt
        return batch.spans(size * number, size * (number + 1))

    def of(
        self, step: int, number: int, batch: Batch, before: BeforeUpdate | None, splitter: MicroBatchSplitter
    ) -> MiniBatch:
        """Return mini-batch `number` of `step`, both 0-based. `before`: needed if the loss selects tokens."""
        in_order, update = self.spans(batch, number), step * self._training.mini_batches + number
        spans = splitter.arrange(in_order, self._world.size)
        tokens = [sum(batch.sequences.trained[span]) if batch.counts(span.start) else 0 for span in spans]
        prompts = [int(batch.trajectories[span.start]) // self._training.samples_per_prompt for span in spans]
        right = [bool(batch.positive[span.start]) for span in spans]
        positive = [each if is_right else 0 for each, is_right in zip(tokens, right, strict=True)]
        return MiniBatch(
            spans=spans,
            lengths=Lengths(tokens=tokens, prompts=prompts),
            positive=Lengths(tokens=positive, prompts=prompts),
            parts=splitter.micro_batches(spans, self._world.rank, self._world.size),
            first_token=sum(batch.sequences.trained[: in_order[0].start]) if in_order else 0,
            selected=self._selected(update, batch, in_order, before),
            update=update,
            has_numbers=_are_finite(batch, in_order),
        )

    def _selected(
        self, update: int, batch: Batch, spans: Sequence[slice], before: BeforeUpdate | None
    ) -> Tensor | None:
        if self._select is None or not spans:
            return None
        assert before is not None
        assert batch.advantages is not None
        tokens = _tokens(batch, spans)
        counted = torch.tensor([batch.counts(span.start) for span in spans])
        counted = counted.repeat_interleave(torch.tensor([sum(batch.sequences.trained[span]) for span in spans]))
        if not bool(counted.any()):
            return torch.zeros(len(counted))
        whole = SelectableTokens(
            logprobs=before.logprobs[tokens][counted],
            entropy=before.entropy[tokens][counted],
            advantages=batch.advantages[tokens][counted],
            seed=sampling_seed(self._seed, "select", update, 0, 0),
        )
        chosen = self._select(whole, self._loss_config)
        return chosen.new_zeros(len(counted)).masked_scatter(counted, chosen)


def _tokens(batch: Batch, spans: Sequence[slice]) -> slice:
    """Return the slice of the step's trained tokens that belongs to a mini-batch."""
    trained = batch.sequences.trained
    return slice(sum(trained[: spans[0].start]), sum(trained[: spans[-1].stop]))


def _are_finite(batch: Batch, spans: Sequence[slice]) -> bool:
    """Return True if the advantages of the counted trajectories are finite: the same in every rank."""
    assert batch.advantages is not None
    if not spans:
        return True
    tokens = _tokens(batch, spans)
    return bool(batch.advantages[tokens][batch.counted_tokens()[tokens]].isfinite().all())


def loss_input(
    batch: Batch,
    mini_batch: MiniBatch,
    part: Part,
    *,
    micro_batch: MicroBatch,
    outputs: TokenLogprobs,
    reference: Tensor | None,
    step_tokens: StepTokens,
    device: torch.device,
) -> TokenBatch:
    """Return what the loss reads of the sequences `part`, laid out as `micro_batch`: those that count, or a filler.

    `outputs`, `reference`: of the policy and its reference. `step_tokens`: of the policy before the step's first update.
    """
    if not batch.counts_any(part):
        return filler(outputs, reference)
    assert batch.advantages is not None
    numbers, places = [*part], batch.sequences.trained_places(part)
    # A sequence, to losses and weights, is all that the policy wrote in a trajectory, over all of its samples.
    _, trajectory = batch.trajectories[numbers].unique_consecutive(return_inverse=True)  # type: ignore[no-untyped-call]
    selected, teacher = None, None
    if mini_batch.selected is not None:
        selected = mini_batch.selected[places - mini_batch.first_token].to(device, non_blocking=True)
    if batch.teacher_logprobs is not None:
        teacher = batch.teacher_logprobs[places].to(device, non_blocking=True)
    tokens = TokenBatch(
        logprobs=outputs.logprobs,
        old_logprobs=step_tokens.old_logprobs(places),
        rollout_logprobs=batch.rollout_logprobs[places].to(device, non_blocking=True),
        reference_logprobs=reference,
        entropy=outputs.entropy,
        advantages=batch.advantages[places].to(device, non_blocking=True),
        positive=batch.positive[numbers].to(device, non_blocking=True)[micro_batch.rows],
        sequence=trajectory.to(device, non_blocking=True)[micro_batch.rows],
        sequences=int(trajectory[-1]) + 1,
        selected=selected,
        teacher_logprobs=teacher,
    )
    return tokens if batch.counted is None else tokens.only(batch.counted[numbers].to(device)[micro_batch.rows])


def filler(outputs: TokenLogprobs, reference: Tensor | None) -> TokenBatch:
    """Return the loss's input for a filler: a token with ratio 1 and advantage 0."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPasses:
    """Forward passes of policy and reference on micro-batches within a budget."""

    policy: Policy
    reference: Reference | None
    budget: Budget
    temperature: float
    pad_token_id: int
    device: torch.device

    def __post_init__(self) -> None:
        """Prepare both models for the layout."""
        if self.budget.layout == "packed":
            self.policy.take_packed()
            if self.reference is not None:
                self.reference.take_packed()

    @property
    def limit_of_memory(self) -> tuple[str, int]:
        """The parameter that determines a micro-batch's memory, and its value."""
        if self.budget.tokens is not None:
            return "runtime.training.micro_batch_tokens", self.budget.tokens
        return "runtime.training.micro_batch_size", self.budget.sequences

    def splitter(self, batch: Batch) -> MicroBatchSplitter:
        """Return the splitter of a step's mini-batches. Patches do not limit a frozen tower, which sees one picture at a time anyway."""
        tower, pictures = self.policy.tower, batch.sequences.pictures
        limits = self.budget.patches is not None and tower is not None and not tower.frozen
        files = pictures.files if pictures is not None and limits else ()
        return MicroBatchSplitter(
            batch.sequences, self.budget, [tower.patches(file) for file in files] if tower else ()
        )

    def lay_out(self, batch: Batch, part: Part) -> MicroBatch:
        """Return a part of a batch as the model's input: padded or packed."""
        if part == NOTHING:
            return PaddedBatch.filler(self.pad_token_id, self.device)
        budget = self.budget
        return batch.lay_out(part, self.pad_token_id, self.device, budget.layout, share_prompts=budget.share_prompts)

    def of_policy(self, micro_batch: MicroBatch, extras: Extras = PLAIN) -> TokenLogprobs:
        """Return the policy's logprobs of a micro-batch's tokens."""
        return self._logprobs(self.policy, micro_batch, extras)

    def of_reference(self, micro_batch: MicroBatch) -> Tensor | None:
        """Return the reference's logprobs; None without a reference."""
        if self.reference is None:
            return None
        with torch.no_grad():
            return self._logprobs(self.reference, micro_batch).logprobs

    def forget_pictures(self) -> None:
        """Release the pictures' features of this step."""
        self.policy.forget_pictures()
        if self.reference is not None:
            self.reference.forget_pictures()

    def _logprobs(self, model: Reference, micro_batch: MicroBatch, extras: Extras = PLAIN) -> TokenLogprobs:
        return token_logprobs(model, micro_batch, self.temperature, extras, self.budget.head_chunk_tokens)
