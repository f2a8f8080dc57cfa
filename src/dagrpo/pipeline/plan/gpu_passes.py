"""Time of an update's passes on a GPU."""

from dataclasses import dataclass

from dagrpo.pipeline.plan.rates import Speed
from dagrpo.pipeline.plan.shape import Shape

# Products of narrow layers reach less of the peak: half of the most at this hidden size. Fitted to three published rates on H100s: 40% of
# the peak for Llama 3.1 8B (torchtitan, docs/performance.md), 37% for Qwen3-4B and 24% for Qwen3-0.6B (prime-rl's SFT, BENCHMARKS.md).
HALF_WIDTH = 1170
# Bytes that operations on a logit read and write (trainer/model/logit_stats.py and head.py): its product, float32, maximum, difference,
# exponential, sum and entropy; then all again but the entropy, the gradient in place, and the reads of its two products.
LOGIT_FORWARD, LOGIT_BACKWARD = 48, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a process in an update."""

    tokens: float  # that the layers compute in each pass
    trained: float  # tokens that the head computes
    attended: float  # length of the sequences
    passes: int  # forward passes that the layers take as long as: 3, computed again 4
    ahead: int = 0  # further forward passes of layers and head: of a reference, or before the update
    frozen: bool = False  # whether the weights have no gradient
    width: int = 2  # bytes of a number
    compiled: bool = True


def update_seconds(shape: Shape, work: Work, speed: Speed, rate: float) -> float:
    """Return the seconds of all passes. `rate`: FLOPs per second of wide products.

    For each token products take 2 FLOPs per parameter, and attention 2 L d s (trainer/metrics/throughput.py). The head runs on trained
    tokens, and once more in the backward pass. What is read and written between products takes the bandwidth (Williams et al. 2009,
    "Roofline").
    """
    text, model, layers = shape.text, shape.arithmetic, work.passes + work.ahead
    of_head = text.vocab_size * text.hidden_size
    heads = (3 if work.frozen else 4) + work.ahead
    products = 2 * (layers * (model.parameters - of_head) * work.tokens + heads * of_head * work.trained)
    attention = 2 * layers * model.attention * work.attended * work.tokens
    between = (
        layers
        * text.num_hidden_layers
        * _between_products(shape, compiled=work.compiled)
        * work.width
        / 2
        * work.tokens
    )
    logits = (LOGIT_FORWARD * (1 + work.ahead) + LOGIT_BACKWARD) * text.vocab_size * work.trained
    narrow = 1 + HALF_WIDTH / text.hidden_size
    read = (between + logits) / (speed.bandwidth * speed.streaming)
    return float(products * narrow / rate + attention / (rate * speed.attention) + read)


def _between_products(shape: Shape, *, compiled: bool) -> int:
    """Return the bytes that a layer's forward pass reads and writes of a token between its products, in 16 bits.

    Compiled: two sums with their norms, queries and keys normalised and rotated, attention, gate times up. Not compiled: a norm reads and
    writes 36 bytes of each number and a sum 6, a rotation 20, activation and product 10.
    """
    hidden, turned, mlp = int(shape.text.hidden_size), shape.queries + shape.keys, shape.mlp_width
    if compiled:
        return 16 * hidden + 8 * turned + 6 * mlp
    return 84 * hidden + (24 + 36 * shape.norms_queries) * turned + 10 * mlp
