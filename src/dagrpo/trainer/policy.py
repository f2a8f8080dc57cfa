"""Logprobs of tokens under a causal language model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.errors import UserError
from dagrpo.trainer.packing import PaddedBatch
from dagrpo.trainer.pictures import PaddedPictures
from dagrpo.trainer.support import PaddedSupport
from dagrpo.trainer.tower import Tower

PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """One value per trained token, sequence after sequence (see PaddedBatch.rows)."""

    logprobs: Tensor  # [tokens], of the temperature-scaled softmax over what each was drawn from: its support, or all
    entropy: Tensor  # [tokens], of that softmax, in nats; a gradient only where it was asked for
    collision: Tensor  # [tokens], the sum of its squared probabilities; no gradient; zero where it was not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What is computed of each token beside its logprob and entropy."""

    entropy_gradient: bool = False
    collision: bool = False


PLAIN = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitProcessing:
    """What a model's family does with the logits that its head returns, by the figures in its config.json."""

    caps: tuple[float, ...]  # soft caps, tanh(x / cap) * cap: Gemma 2 to 4, NanoChat, RecurrentGemma
    factors: tuple[float, ...]  # Cohere, Falcon-H1
    divisors: tuple[float, ...]  # Granite

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LogitProcessing":
        """That of a model's family; nothing for most."""
        config = model.config.get_text_config().to_dict()

        def figures(*names: str) -> tuple[float, ...]:
            return tuple(config[name] for name in names if config.get(name) is not None)

        return cls(
            caps=figures("final_logit_softcapping", "logits_soft_cap"),
            factors=figures("logit_scale", "lm_head_multiplier"),
            divisors=figures("logits_scaling"),
        )

    def apply(self, logits: Tensor) -> Tensor:
        """The processed logits, of any shape."""
        for cap in self.caps:
            logits = torch.tanh(logits / cap) * cap
        for factor in self.factors:
            logits = logits * factor
        for divisor in self.divisors:
            logits = logits / divisor
        return logits


class Policy(torch.nn.Module):
    """A causal language model as the trainer sees it. All of its forward pass is one call, as FSDP needs to shard it.

    The losses are the trainer's alone: the load-balancing loss that some mixtures of experts train their router with is
    not part of them. The router is trained by the policy's own gradient.
    """

    def __init__(self, model: PreTrainedModel, tower: Tower | None = None) -> None:
        """`tower`: the model's vision tower; None: no sequence shows pictures."""
        super().__init__()
        self.model = model
        self.tower = tower
        self._processing = LogitProcessing.of(model)

    def forward(
        self,
        input_ids: Tensor,  # [sequences, length]
        attention_mask: Tensor,  # [sequences, length]
        rows: Tensor,  # [tokens]
        columns: Tensor,  # [tokens]
        targets: Tensor,  # [tokens]
        temperature: float,
        extras: Extras,
        support: PaddedSupport | None = None,
        pictures: PaddedPictures | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(logprobs, entropy, collision), all [tokens]; see TokenLogprobs and PaddedBatch.

        The language-model head runs on the positions that predict a trained token only: prompts and padding would cost
        a vocabulary's worth of memory each. Padding is on the right, so position ids need no care: a model with pictures
        makes its own from what the tower says.
        """
        read: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.tower is not None:
            read = self.tower.shown(input_ids, attention_mask, pictures)
        hidden = self.model.base_model(**read).last_hidden_state
        logits = self._logits(hidden[rows, columns]).float() / temperature
        logits = logits if support is None else _restricted(logits, support)
        log_softmax = torch.log_softmax(logits, dim=-1)  # [tokens, vocabulary]
        logprobs = log_softmax.gather(1, targets[:, None])[:, 0]
        with torch.set_grad_enabled(extras.entropy_gradient and torch.is_grad_enabled()):
            entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
        with torch.no_grad():
            collision = (2 * log_softmax).exp().sum(dim=-1) if extras.collision else torch.zeros_like(logprobs)
        return logprobs, entropy, collision

    def forget_pictures(self) -> None:
        """Let go of what was made of the pictures of a step."""
        if self.tower is not None:
            self.tower.forget()

    def _logits(self, hidden: Tensor) -> Tensor:
        """The logits of hidden states, [..., width] -> [..., vocabulary], as the model itself makes them."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return self._processing.apply(logits)

    @torch.no_grad()
    def own_logits_differ(self) -> bool:
        """Whether `_logits` of a few tokens are not the model's own, made by the whole of its forward pass."""
        device = self.model.device
        input_ids = torch.arange(1, min(PROBE_TOKENS, self.model.config.get_text_config().vocab_size), device=device)
        whole = self.model(input_ids=input_ids[None], use_cache=False).logits
        ours = self._logits(self.model.base_model(input_ids=input_ids[None]).last_hidden_state)
        return whole.shape != ours.shape or not torch.allclose(whole.float(), ours.float(), rtol=1e-5, atol=1e-6)


def _restricted(logits: Tensor, support: PaddedSupport) -> Tensor:
    """The logits, such that a softmax gives probability 0 to every token that is not in the support. [tokens, vocabulary]

    So the ratio of two policies is that of the distributions that were sampled from: Keep Sampling Mask of DeepSeek-V3.2
    (arXiv 2512.02556, section 3.1). No infinity, which would make the entropy no number.
    """
    left = torch.zeros_like(logits, dtype=torch.bool)
    left[support.rows, support.token_ids] = True
    return logits.masked_fill(~left, torch.finfo(logits.dtype).min)


def require_known_logits(policy: Policy) -> None:
    """Refuse, before any work, a model whose logits are made in a way that `Policy` does not know.

    Every rank calls this. A few tokens are run through the whole model and through the policy. UserError: they differ.
    """
    differ = policy.model.get_output_embeddings() is None or policy.own_logits_differ()
    if isinstance(policy, FSDPModule):
        policy.reshard()
    if differ:
        raise UserError(
            f"{type(policy.model).__name__} ({policy.model.config.model_type}) processes its logits in a way that the "
            "trainer does not know, so that its logprobs would be wrong: choose another model."
        )


def token_logprobs(
    policy: torch.nn.Module, batch: PaddedBatch, temperature: float, extras: Extras = PLAIN
) -> TokenLogprobs:
    """Log pi(token | everything before it) for each trained token, by a Policy."""
    logprobs, entropy, collision = policy(
        batch.input_ids,
        batch.attention_mask,
        batch.rows,
        batch.columns,
        batch.targets,
        temperature,
        extras,
        batch.support,
        batch.pictures,
    )
    return TokenLogprobs(logprobs=logprobs, entropy=entropy, collision=collision)
