"""What a forward pass keeps for its backward pass.

Counted on transformers' layers of the family of Llama, Qwen2 and Qwen3 with scaled dot-product attention, tensor by tensor (torch
hands over each that is saved: torch.autograd.graph.saved_tensors_hooks), and a test counts them again. Other families differ a little.
"""

from dagrpo.plan.amounts import FLOAT32
from dagrpo.plan.sequences import MicroBatch
from dagrpo.plan.shape import Stack
from dagrpo.trainer.budget import CACHED, LAUNCHED

READ_IN_FLOAT32 = (
    3  # copies of the rows of logits that are read at a time: shifted, their exponential, and the product of both
)


def per_token(
    stack: Stack, longest: int, dtype_bytes: int, attention_bytes: int | None = None, *, packed: bool = False
) -> int:
    """Bytes that one token keeps in one layer, in a batch whose longest sequence has `longest` tokens.

    For each of the two norms: the residual stream in float32, in which norms compute, the same normalised, and scaled. Of
    attention: queries, keys and values, repeated for every head, and the result. Of the MLP: gate, its activation, up, and their
    product. And the attention mask, of which every layer has a copy in the type that attention computes in.
    A packed row has no mask unless it shares prompts or attends to a window; its keys and values are not repeated; and its result is there
    twice, as parts and joined.

    dtype_bytes, attention_bytes: of a number in the layer, and in its attention; None: the same (trainer/attention.py).
    """
    attention_bytes = attention_bytes or dtype_bytes
    stream = 2 * stack.width * (FLOAT32 + 2 * dtype_bytes)
    mask = 0 if packed else longest * attention_bytes
    attention = (2 * stack.queries + 2 * (stack.keys if packed else stack.queries)) * attention_bytes
    # Its result is kept again where it was cast back or, of a packed row, joined.
    attention += stack.queries * dtype_bytes if packed or attention_bytes != dtype_bytes else 0
    heads = (stack.queries + stack.keys) * (FLOAT32 + dtype_bytes) if stack.norms_of_heads else 0
    return stream + attention + heads + 4 * stack.inner * dtype_bytes + mask


def of_layers(
    stack: Stack,
    batch: MicroBatch,
    dtype_bytes: int,
    attention_bytes: int | None = None,
    *,
    checkpointed: bool = False,
    packed: bool = False,
) -> int:
    """Bytes of all layers, and of the gradients on their way through one of them.

    attention_bytes: see `per_token`.
    checkpointed: a layer keeps only its input, and one at a time is computed again (activation checkpointing).
    """
    layer = per_token(stack, batch.longest, dtype_bytes, attention_bytes, packed=packed)
    kept = stack.layers * stack.width * dtype_bytes + layer if checkpointed else stack.layers * layer
    passing = (3 * stack.inner + 2 * stack.width) * dtype_bytes
    if not batch.prompts:
        return batch.tokens * (kept + passing)
    layers = 1 if checkpointed else stack.layers
    prompts = layers * of_prompts(stack, batch, dtype_bytes, attention_bytes, packed=packed)
    return batch.tokens * (kept + passing) + prompts


def of_prompts(
    stack: Stack, batch: MicroBatch, dtype_bytes: int, attention_bytes: int | None = None, *, packed: bool = False
) -> int:
    """Bytes that a layer keeps for prompts that are computed once.

    All that it keeps of these tokens, and what each sequence that attends to them keeps besides. attention_bytes: see `per_token`.
    """
    alone = batch.prompts * batch.prompt * per_token(stack, batch.prompt, dtype_bytes, attention_bytes, packed=packed)
    return alone + _beside_prompts(stack, batch, packed=packed) * (attention_bytes or dtype_bytes)


def _beside_prompts(stack: Stack, batch: MicroBatch, *, packed: bool) -> int:
    """Numbers that the sequences of a batch keep, beside their own tokens, to attend to the prompts before them.

    A copy of the prompt's keys and values for each sequence; padded, repeated for every head. In a packed row without a mask (see
    trainer/packed_attention.py) there are also queries and results of the prompt, and another copy of the sequences' own queries. With a
    mask there is another copy of all keys and values, repeated for every head.
    """
    of_prompts = batch.sequences * batch.prompt
    if not packed:
        return of_prompts * 2 * stack.queries
    if batch.prompt <= batch.longest - batch.prompt:
        return of_prompts * 2 * (stack.keys + stack.queries) + batch.tokens * stack.queries
    repeated = 0 if stack.keys == stack.queries else (of_prompts + batch.tokens) * 2 * stack.queries
    return of_prompts * 2 * stack.keys + repeated


def of_logits(
    vocabulary: int, trained: int, dtype_bytes: int, *, gpu: bool, reference: bool = False, support: bool = False
) -> int:
    """Bytes of the logits of so many trained tokens at their peak.

    All of them wait in the head's type, which has dtype_bytes, and are turned into their gradient there; some rows at a time are read
    in float32 (trainer/reading.py). reference: whether one is asked in the same pass, whose logits are made while the policy's
    wait. support: whether they are limited to the tokens that were sampled from, which takes a mask.
    """
    logits = trained * vocabulary
    read = min(logits, LAUNCHED if gpu else max(CACHED, vocabulary))
    return logits * dtype_bytes * (1 + reference) + read * (FLOAT32 * READ_IN_FLOAT32 + support)
