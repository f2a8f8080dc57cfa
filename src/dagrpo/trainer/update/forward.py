"""Forward passes of an update, of policy and reference."""

import torch
from torch import Tensor

from dagrpo.trainer.batches.batch import Batch, MicroBatch, PaddedBatch
from dagrpo.trainer.batches.budget import Budget
from dagrpo.trainer.batches.micro_batches import NOTHING, MicroBatchSplitter, Part
from dagrpo.trainer.model.head import PLAIN, Extras
from dagrpo.trainer.model.policy import Policy, Reference, TokenLogprobs, token_logprobs


class ForwardPasses:
    """Forward passes of policy and reference on micro-batches within a budget."""

    def __init__(
        self,
        *,
        policy: Policy,
        reference: Reference | None,
        budget: Budget,
        temperature: float,
        pad_token_id: int,
        device: torch.device,
    ) -> None:
        self._policy = policy
        self._reference = reference
        self._budget = budget
        self._temperature = temperature
        self._pad_token_id = pad_token_id
        self._device = device
        if budget.layout == "packed":
            policy.take_packed()
            if reference is not None:
                reference.take_packed()

    @property
    def limit_of_memory(self) -> tuple[str, int]:
        """The parameter that determines a micro-batch's memory, and its value."""
        if self._budget.tokens is not None:
            return "runtime.training.micro_batch_tokens", self._budget.tokens
        return "runtime.training.micro_batch_size", self._budget.sequences

    def splitter(self, batch: Batch) -> MicroBatchSplitter:
        """Return the splitter of a step's mini-batches. Patches do not limit a frozen tower, which sees one picture at a time anyway."""
        tower, pictures = self._policy.tower, batch.sequences.pictures
        limits = self._budget.patches is not None and tower is not None and not tower.frozen
        files = pictures.files if pictures is not None and limits else ()
        return MicroBatchSplitter(
            batch.sequences, self._budget, [tower.patches(file) for file in files] if tower else ()
        )

    def lay_out(self, batch: Batch, part: Part) -> MicroBatch:
        """Return a part of a batch as the model's input: padded or packed."""
        if part == NOTHING:
            return PaddedBatch.filler(self._pad_token_id, self._device)
        budget = self._budget
        return batch.lay_out(part, self._pad_token_id, self._device, budget.layout, share_prompts=budget.share_prompts)

    def of_policy(self, micro_batch: MicroBatch, extras: Extras = PLAIN) -> TokenLogprobs:
        """Return the policy's logprobs of a micro-batch's tokens."""
        return self._logprobs(self._policy, micro_batch, extras)

    def of_reference(self, micro_batch: MicroBatch) -> Tensor | None:
        """Return the reference's logprobs; None without a reference."""
        if self._reference is None:
            return None
        with torch.no_grad():
            return self._logprobs(self._reference, micro_batch).logprobs

    def forget_pictures(self) -> None:
        """Release the pictures' features of this step."""
        self._policy.forget_pictures()
        if self._reference is not None:
            self._reference.forget_pictures()

    def _logprobs(self, model: Reference, micro_batch: MicroBatch, extras: Extras = PLAIN) -> TokenLogprobs:
        return token_logprobs(model, micro_batch, self._temperature, extras, self._budget.head_chunk_tokens)
