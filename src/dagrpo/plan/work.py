"""How much there is to compute: FLOPs of passes over sequences, and what sampling reads.

As in PaLM (arXiv 2204.02311, appendix B): 2 N for each token of a forward pass and 4 N for a backward pass, and for attention 2 L d s
and 4 L d s, in a sequence of s tokens. The head is counted for trained tokens alone, as trainer/policy.py computes it. Not counted:
padding, the vision tower, and what is done token by token, such as norms.
"""

from dataclasses import dataclass

from dagrpo.params.schema import Params
from dagrpo.plan.amounts import BYTES
from dagrpo.plan.sequences import Lengths
from dagrpo.plan.shape import Shape
from dagrpo.plan.speed import Speed
from dagrpo.trainer.objective import Objective

PASSES_BACKWARD = 2  # in the work of a forward pass: gradients of activations, and of weights
HAND_OVER_BYTES = 1e9  # per second, through a file in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often a step's sequences go through a model of the policy's size."""

    # Alone: old logprobs, where a step has several updates, those of the reference, and activations that are computed again.
    forward: int
    update: int = 1  # forward and backward


def passes_of(params: Params) -> Passes:
    """As trainer/update.py makes them."""
    objective = Objective(params.algorithm, params.rollout.max_new_tokens, None)
    looks_ahead = params.training.mini_batches > 1 or objective.looks_ahead
    again = params.runtime.training.activation_checkpointing
    return Passes(forward=int(looks_ahead) + int(params.algorithm.kl.coefficient > 0) + int(again))


def forward_flops(shape: Shape, sequences: int, length: int, trained: int) -> float:
    """Of a forward pass over sequences of `length` tokens, of which `trained` in each are predicted."""
    arithmetic, head = shape.arithmetic, shape.vocabulary * shape.text.width
    each = 2 * (arithmetic.parameters - head) * length + 2 * head * trained + 2 * arithmetic.attention * length**2
    return sequences * each


def update_flops(shape: Shape, sequences: int, length: int, trained: int, passes: Passes, *, adapter: bool) -> float:
    """Of all passes of an update. adapter: whether an adapter is all that is trained, so that weights get no gradient."""
    backward = 1 if adapter else PASSES_BACKWARD
    return forward_flops(shape, sequences, length, trained) * (passes.forward + passes.update * (1 + backward))


def sampling_seconds(
    shape: Shape, params: Params, speed: Speed, *, attempts: int, prompts: int, prompt: int, lengths: Lengths
) -> float:
    """Of generating so many attempts at so many problems, each as long as it may be.

    The slower one of two: computing, 2 N for each token that is written or taken in (a prompt once for all of its attempts), and
    reading the weights, once for each step of decoding. On top of it, reading every attempt's keys and values so far. GPUs that divide
    the model share all of it; what they send each other is not counted.
    """
    engine, dtype = params.runtime.engine, params.rollout.dtype
    servers = len(engine.servers) or (engine.replicas if speed.processes_add_up else 1)
    ranks = engine.tensor_parallel if speed.processes_add_up else 1
    running = max(min(engine.max_running_requests, engine.max_total_tokens // lengths.whole), 1)
    attempts, prompts = -(-attempts // servers), -(-prompts // servers)
    steps = -(-attempts // running) * lengths.written
    written = attempts * lengths.written
    computing = 2 * shape.arithmetic.parameters * (written + prompts * prompt) / speed.sampling
    reading = steps * shape.weights * BYTES[dtype] / speed.bandwidth
    kept = (prompt + lengths.whole) / 2 * shape.cached_per_token * BYTES[dtype]
    return (max(computing, reading) + written * kept / speed.cache_bandwidth) / ranks + steps * speed.per_step


def hand_over_seconds(shape: Shape, params: Params) -> float:
    """Of writing the weights for the engine, or the adapter that it serves, and of its reading them."""
    numbers = shape.handed_over(params.training.lora, params.training.vision)
    return 2 * numbers * BYTES[params.rollout.dtype] / HAND_OVER_BYTES
