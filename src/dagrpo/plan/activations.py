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


def per_token(stack: Stack, longest: int, dtype_bytes: int, attention_bytes: int | None = None) -> int:
    """Bytes that one token keeps in one layer, in a batch whose longest sequence has `longest` tokens.

    For each of the two norms: the residual stream in float32, in which norms compute, the same normalised, and scaled. Of
    attention: queries, keys and values, repeated for every head, and the result. Of the MLP: gate, its activation, up, and their
    product. And the attention mask, of which every layer has a copy in the type that attention computes in.

    dtype_bytes, attention_bytes: of a number in the layer, and in its attention; None: the same (trainer/attention.py).
    """
    attention_bytes = attention_bytes or dtype_bytes
    stream = 2 * stack.width * (FLOAT32 + 2 * dtype_bytes)
    attention = 4 * stack.queries * attention_bytes
    attention += stack.queries * dtype_bytes if attention_bytes != dtype_bytes else 0  # its result, cast back
    heads = (stack.queries + stack.keys) * (FLOAT32 + dtype_bytes) if stack.norms_of_heads else 0
    return stream + attention + heads + 4 * stack.inner * dtype_bytes + longest * attention_bytes


def of_layers(
    stack: Stack,
    batch: MicroBatch,
    dtype_bytes: int,
    attention_bytes: int | None = None,
    *,
    checkpointed: bool = False,
) -> int:
    """Bytes of all layers, and of the gradients on their way through one of them.

    attention_bytes: see `per_token`.
    checkpointed: a layer keeps only its input, and one at a time is computed again (activation checkpointing).
    """
    layer = per_token(stack, batch.longest, dtype_bytes, attention_bytes)
    kept = stack.layers * stack.width * dtype_bytes + layer if checkpointed else stack.layers * layer
    passing = (3 * stack.inner + 2 * stack.width) * dtype_bytes
    return batch.tokens * (kept + passing)


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
