"""Logprobs of tokens under a causal language model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import MicroBatch, PaddedBatch
from dagrpo.trainer.batches.packed_rows import PackedBatch
from dagrpo.trainer.model.attention import PACKED, attend_by_segment
from dagrpo.trainer.model.head import PLAIN, Extras, LogitProcessing, Read, Reading, read_of_head
from dagrpo.trainer.model.vision_tower import Tower

PROBE_TOKENS = 8
WEIGHTS = torch.float32  # their type, and that of their gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Values of each trained token, sequence after sequence (see PaddedBatch.rows)."""

    logprobs: Tensor  # [tokens], of the temperature-scaled softmax over the sampling mask, or the vocabulary
    entropy: Tensor  # [tokens], of that softmax, in nats; with a gradient only if asked for
    collision: Tensor  # [tokens], the sum of its squared probabilities; no gradient; zero if not asked for


class Policy(torch.nn.Module):
    """Causal language model as the trainer sees it. All of its forward pass is one call, as FSDP needs to shard it.

    Its weights and their gradients are float32, whatever it computes in. In bfloat16 a forward pass casts the weights, as in
    mixed precision training with a float32 master copy (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1): logits are
    cast back before the temperature, the softmax and the loss, and each micro-batch's gradient before it is added up. float16 is
    used in the same way, with a scaled loss (see LossScale). A head in float32 takes hidden states and weights as they
    are rounded to the other type, and multiplies them in float32, as SGLang's --enable-fp32-lm-head does.
    The losses are the trainer's alone: the load-balancing loss that some mixtures of experts train their router with is
    not part of them. The router is trained by the policy's own gradient.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tower: Tower | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        float32_head: bool = False,
    ) -> None:
        """Wrap `model`, which computes in `dtype`. `tower`: its vision tower; None: no sequence shows pictures.

        `float32_head`: the head computes in float32, whatever `dtype` is.
        """
        super().__init__()
        self.dtype = dtype
        self.float32_head = float32_head
        self.model = model
        self.tower = tower
        self._processing = LogitProcessing.of(model)
        self._longest = longest_of_one_rope(model.config.get_text_config())

    def forward(
        self,
        batch: MicroBatch,
        temperature: float,
        extras: Extras = PLAIN,
        head_chunk_tokens: int | None = None,
    ) -> Read:
        """Return (logprobs, entropy, collision) of the trained tokens of a batch, all [tokens]; see TokenLogprobs.

        The language-model head runs only on the positions that predict a trained token: prompts and padding would cost
        a vocabulary's worth of memory each. `head_chunk_tokens`: how many of them at a time, at most; None: all at once.
        Padding is on the right, so its position ids need no care: a model with pictures makes its own from the tower's output.
        """
        reading = Reading(
            targets=batch.targets,
            temperature=temperature,
            extras=extras,
            support=batch.support,
            processing=self._processing,
        )
        return self._read(batch.predicting(self._hidden(batch)), reading, head_chunk_tokens)

    def take_packed(self) -> None:
        """Prepare the model for packed rows as well; prepare.py checks that it supports them."""
        attend_by_segment(self.model)

    def _hidden(self, batch: MicroBatch) -> Tensor:
        """Return the last hidden states, [sequences, length, width]; of a packed row, [1, tokens, width]."""
        self._require_one_rope(batch)
        return self._hidden_of_row(batch) if isinstance(batch, PackedBatch) else self._hidden_of_padded(batch)

    def _require_one_rope(self, batch: MicroBatch) -> None:
        """Raise UserError if a sequence is so long that it changes the positions of all others in its batch."""
        if self._longest is not None and batch.longest > self._longest:
            raise UserError(
                f"A sequence has {batch.longest} tokens, and beyond {self._longest} the rotary positions of this "
                f"{self.model.config.model_type} model change for a whole batch, so that logprobs would depend on which sequences "
                "are computed together: lower training.max_prompt_tokens, rollout.max_new_tokens, or what turns may add, or choose "
                "another model."
            )

    def _hidden_of_row(self, batch: PackedBatch) -> Tensor:
        assert self.model.config._attn_implementation == PACKED, (
            "take_packed comes first: else tokens attend to other sequences"
        )
        hidden: Tensor = self.model.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, segments=batch.segments, use_cache=False
        ).last_hidden_state
        return hidden

    def _hidden_of_padded(self, batch: PaddedBatch) -> Tensor:
        input_ids, attention_mask = batch.input_ids, batch.attention_mask
        read: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.tower is not None:
            read = self.tower.model_inputs(input_ids, attention_mask, batch.pictures)
        hidden: Tensor = self.model.base_model(**read, use_cache=False).last_hidden_state
        return hidden

    @property
    def casts(self) -> bool:
        """Return True if a forward pass has to cast the weights; for a sharded policy, FSDP casts them."""
        return self.dtype.itemsize < WEIGHTS.itemsize and not isinstance(self, FSDPModule)

    def cast_weights(self) -> dict[str, Tensor]:
        """Return the weights cast to the computing type: gradients of the cast ones are added to those of the weights."""
        return {name: weight.to(self.dtype) for name, weight in self.named_parameters()}

    def computed(self, *inputs: Any) -> Read:
        """Compute the values of `forward` in `dtype`."""
        outputs: Read
        outputs = functional_call(self, self.cast_weights(), inputs) if self.casts else self(*inputs)
        return outputs

    @property
    def has_linear_head(self) -> bool:
        """Return True if the head can be run on some tokens at a time, and in another type."""
        return type(self.model.get_output_embeddings()).forward is torch.nn.Linear.forward

    def forget_pictures(self) -> None:
        """Free the features of a step's pictures."""
        if self.tower is not None:
            self.tower.forget()

    def _read(self, hidden: Tensor, reading: Reading, head_chunk_tokens: int | None) -> Read:
        """Read hidden states, [tokens, width]. Raises UserError if the head cannot be run in chunks, or in float32."""
        head = self.model.get_output_embeddings()
        if not self.has_linear_head:
            if head_chunk_tokens is None and not self.float32_head:
                return reading.of(head(hidden))
            raise UserError(
                f"The head of {type(self.model).__name__} is no linear layer, so that it can neither be run on some tokens at a time "
                "nor in another type: set head_chunk_tokens (runtime.training, runtime.sft) and rollout.head_dtype to null."
            )
        weight: Tensor = head.weight
        bias: Tensor | None = head.bias
        if self.float32_head:
            hidden, weight, bias = hidden.float(), weight.float(), None if bias is None else bias.float()
        return read_of_head(hidden, weight, bias, reading, head_chunk_tokens)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states, [..., width] -> [..., vocabulary], as the model itself computes them."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return self._processing.apply(logits)

    @torch.no_grad()
    def own_logits_differ(self) -> bool:
        """Return True if `_logits` of a few tokens differ from the logits of the model's whole forward pass."""
        device = self.model.device
        input_ids = torch.arange(1, min(PROBE_TOKENS, self.model.config.get_text_config().vocab_size), device=device)
        whole = self.model(input_ids=input_ids[None], use_cache=False).logits
        ours = self._logits(self.model.base_model(input_ids=input_ids[None]).last_hidden_state)
        return whole.shape != ours.shape or not torch.allclose(whole.float(), ours.float(), rtol=1e-5, atol=1e-6)


def require_known_logits(policy: Policy) -> None:
    """Refuse, before any work, a model whose logits are not computed as `Policy` assumes.

    Every rank calls this. A few tokens are run through the whole model and through the policy. Raises UserError if they differ.
    """
    differ = policy.model.get_output_embeddings() is None or policy.own_logits_differ()
    if isinstance(policy, FSDPModule):
        policy.reshard()
    if differ:
        raise UserError(
            f"{type(policy.model).__name__} ({policy.model.config.model_type}) processes its logits in a way that the "
            "trainer does not know, so that its logprobs would be wrong: choose another model."
        )


class Reference(Protocol):
    """Policy that is not trained."""

    def __call__(
        self, batch: MicroBatch, temperature: float, extras: Extras = PLAIN, head_chunk_tokens: int | None = None
    ) -> Read: ...

    def take_packed(self) -> None: ...

    def forget_pictures(self) -> None: ...


def token_logprobs(
    policy: Callable[..., Read],
    batch: MicroBatch,
    temperature: float,
    extras: Extras = PLAIN,
    head_chunk_tokens: int | None = None,
) -> TokenLogprobs:
    """Return log pi(token | everything before it) for each trained token, by a Policy."""
    computed = policy.computed if isinstance(policy, Policy) else policy
    logprobs, entropy, collision = computed(batch, temperature, extras, head_chunk_tokens)
    return TokenLogprobs(logprobs=logprobs, entropy=entropy, collision=collision)


DYNAMIC, LONGROPE = "dynamic", "longrope"


def longest_of_one_rope(config: Any) -> int | None:
    """Return the length in tokens up to which the frequencies of rotary positions are fixed; None: they always are.

    Beyond that, transformers chooses the frequencies of a whole batch by its longest sequence (rope types dynamic and longrope), so that
    the logprobs of a short one depend on its neighbours. config: of the text, not of the whole model.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    of_layers = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    limits = [_limit(config, each) for each in of_layers if each.get("rope_type") in (DYNAMIC, LONGROPE)]
    return min(limits, default=None)


def _limit(config: Any, parameters: dict[str, Any]) -> int:
    original = parameters.get("original_max_position_embeddings")
    if parameters["rope_type"] == DYNAMIC or original is None:
        return int(config.max_position_embeddings)
    return int(original)
