"""Time of passes over sequences on a GPU."""

from dataclasses import dataclass

from dagrpo.pipeline.plan.rates import Speed
from dagrpo.pipeline.plan.shape import Shape

# Counted in the kernels of this trainer's update of Qwen3-0.6B (docs/gpu.md): what is read and written between products, against each
# layer's results written once and read once; and of each logit, in four passes over it (forward, forward again, twice backward).
UNCOMPILED = 4
LOGIT_BYTES = 112


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of an update, of all sequences of a process."""

    layers: float  # that the layers compute
    head: float  # that the head computes
    attended: float  # length of their sequences


def pass_seconds(shape: Shape, tokens: Tokens, speed: Speed, rate: float, *, width: int, compiled: bool) -> float:
    """Return the seconds of one forward pass; a backward pass takes twice as much. `rate`: FLOPs per second of products.

    For each token products take 2 FLOPs per parameter, and attention 2 L d s (trainer/metrics/throughput.py). Between products move, in
    `width` bytes, the results of a layer: 4 of the hidden size, twice queries, keys and values, 3 of the MLP's width. A small model has
    more of them for each FLOP, and so reaches a smaller share of the peak (Williams et al. 2009, "Roofline").
    """
    text, model = shape.text, shape.arithmetic
    head = text.vocab_size * text.hidden_size
    products = 2 * ((model.parameters - head) * tokens.layers + head * tokens.head)
    attention = 2 * model.attention * tokens.attended * tokens.layers
    of_layers = text.num_hidden_layers * (4 * text.hidden_size + 3 * shape.mlp_width)
    moved = 2 * (of_layers + 2 * (model.attention + shape.cached_per_token)) * width * (1 if compiled else UNCOMPILED)
    read = moved * tokens.layers + LOGIT_BYTES / 4 * text.vocab_size * tokens.head
    seconds = products / rate + attention / (rate * speed.attention) + read / (speed.bandwidth * speed.streaming)
    return float(seconds)
