"""Memory of the passes over one micro-batch, in closed form.

Adds up what autograd keeps of the layers of Llama and Qwen (norms, attention, an MLP with a gate), and what is there beside it at each
moment that may be the fullest. Within 4% of the tensors alive in real updates on a CPU, padded in 16 bits 6%, adapters with
recomputation 10% (tests/pipeline/plan/test_activations.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32
from dagrpo.pipeline.plan.sequences import MicroBatch
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.rollout.config import Dtype
from dagrpo.trainer.batches.budget import CACHED, LAUNCHED
from dagrpo.trainer.config.runtime import Layout

ADAPTED = 7  # layers of a block beside which an adapter keeps `rank` numbers of each token


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Settings of a micro-batch that decide its memory."""

    batch: MicroBatch
    dtype: Dtype
    layout: Layout
    on_gpu: bool
    reference: bool = False  # whether a reference policy computes its logprobs
    rank: int = 0  # of an adapter; 0: all weights are trained
    checkpointed: bool = False  # whether activations are computed again
    head_chunk: int | None = None  # tokens whose logits are in memory at a time; None: all
    float32_head: bool = False
    sharded: bool = False  # whether FSDP gathers the weights, layer by layer, which are counted elsewhere
    accumulates: bool = True  # whether gradients of an earlier micro-batch are there already
    looks_ahead: bool = False  # whether the policy runs once more before its update


class Activations:
    """Bytes of a micro-batch beside float32 weights and their gradients."""

    def __init__(self, shape: Shape, passes: Passes) -> None:
        self._shape, self._passes, self._width = shape, passes, BYTES[passes.dtype]
        text, self._narrow = shape.text, self._width < FLOAT32
        self._hidden, self._vocabulary = int(text.hidden_size), int(text.vocab_size)
        self._sums = FLOAT32 * int(text.num_attention_heads)  # of a token's attention
        self._tokens = passes.batch.computed
        self._stream = self._width * self._hidden * self._tokens
        self._head = self._width * self._vocabulary * self._hidden
        self._tied = bool(getattr(text, "tie_word_embeddings", False))
        self._casts = self._narrow and not passes.sharded  # the weights, whose gradients in `dtype` take their place
        self._norm = FLOAT32 + (0 if passes.rank else self._width)  # of each number: in float32, and normalised
        layer = self._of_layer()
        self._kept = int(text.num_hidden_layers) * (self._stream if passes.checkpointed else layer)
        self._again = layer - (0 if self._narrow else self._stream) if passes.checkpointed else 0

    @property
    def peak(self) -> int:
        """Return the most bytes. A first micro-batch has no gradients before its backward pass."""
        moments = [self._in_head(), self._in_layers(), *self._in_forward_passes()]
        if self._passes.rank:
            return max(moments)
        if self._passes.accumulates:
            return max(*moments, self._in_embeddings())
        return max(max(moments) - FLOAT32 * self._shape.weights, self._head)

    def _of_layer(self) -> int:
        """Return what a layer keeps: two norms and their results, gate, its activation, up and their product, and attention."""
        shape, passes, hidden = self._shape, self._passes, self._hidden
        each = 2 * hidden * (self._norm + self._width) + self._width * (4 * shape.mlp_width + ADAPTED * passes.rank)
        each += self._norm * (shape.queries + shape.keys) if shape.norms_queries else 0
        return self._tokens * each + self._of_attention()

    def _of_attention(self) -> int:
        """Return what attention keeps: of the kernel for packed rows queries, keys, values and result.

        Elsewhere keys and values are there for each query head, on a CPU in float32; padded sequences have a mask, and shared prompts are
        looked up for each of their sequences.
        """
        shape, passes, batch = self._shape, self._passes, self._passes.batch
        if passes.layout == "packed" and passes.on_gpu and self._narrow:
            return self._tokens * (2 * self._width * (shape.queries + shape.keys) + self._sums)
        wide, seen = self._width if passes.on_gpu else FLOAT32, batch.sequences * batch.longest
        if passes.layout == "padded":
            return seen * (wide * (4 * shape.queries + batch.longest) + self._sums)
        of_results = self._tokens * self._width * shape.queries
        return seen * (wide * (5 if batch.samples > 1 else 4) * shape.queries + self._sums) + of_results

    def _of_head(self) -> tuple[int, int]:
        """Return the bytes of the hidden states of trained tokens, and of the logits that are in memory at a time."""
        width = FLOAT32 if self._passes.float32_head else self._width
        trained = self._passes.batch.trained
        rows = min(self._passes.head_chunk or trained, trained)
        return width * self._hidden * trained, width * self._vocabulary * rows

    def _reading(self) -> int:
        """Return the bytes of what is computed of some rows of logits in float32 (trainer/model/logit_stats.py)."""
        numbers = min(self._of_head()[1] // self._width, LAUNCHED if self._passes.on_gpu else CACHED)
        return FLOAT32 * numbers * (2 if self._narrow and not self._passes.float32_head else 1)

    def _after_forward(self) -> int:
        """Return what a forward pass has left: kept ones, the last norm, and hidden states; embeddings that are not tied are not kept."""
        cast = self._width * self._shape.weights - (0 if self._tied else self._head) if self._casts else 0
        return cast + self._kept + self._norm * self._stream // self._width + self._of_head()[0]

    def _in_head(self) -> int:
        """Return the bytes of the backward pass of the head, whose gradient is added up in float32."""
        hidden, logits = self._of_head()
        total = self._after_forward() + hidden + logits
        if self._passes.rank:
            return total + self._reading()
        wide = 2 * self._head
        if not self._narrow:
            return total + self._head + self._reading()
        if self._passes.float32_head:  # its weight, too, and no cast one
            return total + 2 * wide - (self._head if self._casts else 0) + self._reading()
        return total + wide + max(self._reading(), self._head)

    def _in_layers(self) -> int:
        """Return the bytes of the backward pass of the last layer, in its MLP, after its forward pass if that is computed again."""
        shape, cast = self._shape, 0
        if self._casts:
            outside = shape.outside if self._passes.rank else 0 if self._tied else self._head // self._width
            cast = self._width * (shape.weights - outside)
            cast += 0 if self._passes.rank else self._width * self._hidden * shape.mlp_width
        elif self._tied and not self._passes.rank:
            cast = self._head  # the head's gradient, which waits for that of the embeddings
        return cast + self._kept + self._again + self._stream + 2 * self._width * shape.mlp_width * self._tokens

    def _in_embeddings(self) -> int:
        """Return the bytes at the end of the backward pass."""
        if self._casts:
            return self._width * self._shape.weights + FLOAT32 * self._head // self._width
        return 3 * self._head if self._tied else self._head + self._stream

    def _in_forward_passes(self) -> Iterator[int]:
        """Yield the bytes of forward passes beside what is kept: of a reference, and of a policy whose weights are all frozen."""
        cast, logits = self._width * self._shape.weights if self._casts else 0, self._of_head()[1]
        trained = self._passes.batch.trained
        if self._passes.rank:
            yield (
                self._after_forward() + (self._head if self._casts and not self._tied else 0) + logits + self._reading()
            )
        if self._passes.reference:
            waiting = logits if (self._passes.head_chunk or trained) >= trained else 0  # those of the policy
            layer = 3 * self._width * self._shape.mlp_width * self._tokens
            yield self._after_forward() + waiting + cast + max(logits + self._reading(), layer)
