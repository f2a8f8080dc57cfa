"""Shared prompts: a group's prompt is computed once (prefix sharing).

The model reads each prompt, up to its last token, into a key-value cache. The rest of each sequence is read with its
prompt's part of that cache, through which the gradients of all samples reach the prompt. So the loss is the same, and
its gradient is equal up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from dagrpo.checkpoints.modelling import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrompts:
    """Prompts of a batch, side by side and padded on the right, each without its last token.

    That token is left to the sequences, since it predicts the first one after the prompt.
    """

    input_ids: Tensor  # [prompts, length] int64
    attention_mask: Tensor  # [prompts, length] int64, 0 on padding
    owners: Tensor  # [sequences] int64: the prompt of each

    @classmethod
    def of(cls, prompts: Sequence[Tensor], numbers: Sequence[int], device: torch.device) -> "SharedPrompts | None":
        """Build from `prompts`, each sequence's tokens before its first trained one, [tokens] int64, and their `numbers`, equal for
        equal prompts. None if no two sequences share a prompt, or if every prompt is one token.
        """
        first = {number: place for place, number in reversed([*enumerate(numbers)])}
        order = sorted(first, key=first.__getitem__)
        shared = [prompts[first[number]][:-1] for number in order]
        if len(shared) == len(numbers) or not any(map(len, shared)):
            return None
        places = {number: place for place, number in enumerate(order)}
        return cls(
            input_ids=pad_sequence(shared, batch_first=True).to(device, non_blocking=True),
            attention_mask=pad_sequence([torch.ones_like(each) for each in shared], batch_first=True).to(
                device, non_blocking=True
            ),
            owners=torch.tensor([places[number] for number in numbers]).to(device, non_blocking=True),
        )


def hidden_after(model: PreTrainedModel, prompts: SharedPrompts, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the last hidden states of each sequence after its prompt. [sequences, length, width]

    input_ids, attention_mask: [sequences, length], from the last token of each prompt on, padded on the right.
    """
    cache = DynamicCache(config=model.config)
    model.base_model(
        input_ids=prompts.input_ids, attention_mask=prompts.attention_mask, past_key_values=cache, use_cache=True
    )
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[prompts.owners], layer.values[prompts.owners]
    before = prompts.attention_mask[prompts.owners]
    positions = before.sum(dim=1, keepdim=True) + torch.arange(input_ids.shape[1], device=input_ids.device)
    hidden: Tensor = model.base_model(
        input_ids=input_ids,
        attention_mask=torch.cat([before, attention_mask], dim=1),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return hidden
