"""Mini-batches of a step: the rollouts of each optimizer update.

micro_batches.py cuts them further, to fit into memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dagrpo.algorithms.aggregation import Lengths
from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.tokens import MiniBatch as SelectableTokens
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import MicroBatchSplitter, Part
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.update.accumulators import BeforeUpdate
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
