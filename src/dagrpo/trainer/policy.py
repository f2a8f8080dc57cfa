"""Logprobs of completion tokens under a causal language model."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from dagrpo.trainer.packing import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """One value per completion token, sequence after sequence (see Batch.rows)."""

    logprobs: torch.Tensor  # [tokens], of the temperature-scaled softmax over the whole vocabulary
    entropy: torch.Tensor  # [tokens], of that softmax, in nats; no gradient


class Policy(torch.nn.Module):
    """A causal language model as GRPO sees it. All of its forward pass is one call, which FSDP needs to shard it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,  # [sequences, length]
        attention_mask: torch.Tensor,  # [sequences, length]
        completion_mask: torch.Tensor,  # [sequences, length]
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs, entropy), both [tokens]; see TokenLogprobs.

        The language-model head runs on the positions that predict a completion token only: prompts and padding would
        cost a vocabulary's worth of memory each. Padding is on the right, so position ids need no care.
        """
        hidden = self.model.base_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        predicted = completion_mask[:, 1:]
        logits = self.model.get_output_embeddings()(hidden[:, :-1][predicted]).float() / temperature
        log_softmax = torch.log_softmax(logits, dim=-1)  # [tokens, vocabulary]
        targets = input_ids[:, 1:][predicted]
        logprobs = log_softmax.gather(1, targets[:, None])[:, 0]
        with torch.no_grad():
            entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
        return logprobs, entropy


def token_logprobs(policy: torch.nn.Module, batch: Batch, temperature: float) -> TokenLogprobs:
    """Log pi(token | everything before it) for each completion token, by a Policy."""
    logprobs, entropy = policy(batch.input_ids, batch.attention_mask, batch.completion_mask, temperature)
    return TokenLogprobs(logprobs=logprobs, entropy=entropy)
