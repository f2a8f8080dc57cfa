"""Logprobs of completion tokens under a causal language model."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from dagrpo.grpo.batches import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """One value per completion token, sequence after sequence (see Batch.rows)."""

    logprobs: torch.Tensor  # [tokens], of the temperature-scaled softmax over the whole vocabulary
    entropy: torch.Tensor  # [tokens], of that softmax, in nats; no gradient


def token_logprobs(model: PreTrainedModel, batch: Batch, temperature: float) -> TokenLogprobs:
    """Log pi(token | everything before it) for each completion token.

    The language-model head runs on the positions that predict a completion token only: prompts and padding would
    cost a vocabulary's worth of memory each. Padding is on the right, so position ids need no care.
    """
    hidden = model.base_model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    predicted = batch.completion_mask[:, 1:]
    logits = model.get_output_embeddings()(hidden[:, :-1][predicted]).float() / temperature  # [tokens, vocabulary]
    log_softmax = torch.log_softmax(logits, dim=-1)
    targets = batch.input_ids[:, 1:][predicted]
    logprobs = log_softmax.gather(1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
    return TokenLogprobs(logprobs=logprobs, entropy=entropy)
