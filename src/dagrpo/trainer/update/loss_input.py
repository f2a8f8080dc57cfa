"""Input of the loss: the tokens of a micro-batch."""

import torch
from torch import Tensor

from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.trainer.batches.batch import Batch, MicroBatch
from dagrpo.trainer.batches.micro_batches import Part
from dagrpo.trainer.model.policy import TokenLogprobs
from dagrpo.trainer.update.accumulators import StepTokens
from dagrpo.trainer.update.mini_batches import MiniBatch


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
