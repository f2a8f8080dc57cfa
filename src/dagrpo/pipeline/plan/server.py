"""Memory of the servers of the policy and of the teacher."""

from collections.abc import Iterator

from dagrpo.engine import engine_of
from dagrpo.engine.config import EngineConfig
from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32, Item, Memory, memory
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.rollout.config import Dtype

LEFT_BEHIND = ("the processes themselves",)  # of a server that has released its GPU


def server_memory(what: str, shape: Shape, engine: EngineConfig, dtype: Dtype, requests: int, *, gpu: bool) -> Memory:
    """Return the memory of a server with `requests` running completions, on each of its GPUs, or on a CPU."""
    return memory(what, _items(shape, engine, dtype, requests, gpu=gpu))


def cache_bytes(shape: Shape, tokens: int, dtype: Dtype) -> int:
    """Return the bytes of the keys and values of these tokens."""
    return tokens * shape.cached_per_token * BYTES[dtype]


def _items(shape: Shape, engine: EngineConfig, dtype: Dtype, requests: int, *, gpu: bool) -> Iterator[Item]:
    each, running = BYTES[dtype], min(requests, engine.max_running_requests)
    beside = engine_of(engine).footprint
    ranks = engine.tensor_parallel if gpu else 1  # on a CPU they are side by side
    over = f", over {ranks} GPUs" if ranks > 1 else ""
    yield Item(
        name="weights", bytes=-(-shape.weights // ranks) * each, how=f"{dtype}, {shape.weights:,} parameters{over}"
    )
    if not gpu and dtype in beside.packed_dtypes and shape.weights * each <= beside.packed_limit:
        yield Item(name="packed weights", bytes=shape.weights * each, how="copies in another layout, on a CPU")
    cache = -(-cache_bytes(shape, engine.max_total_tokens, dtype) // min(ranks, _key_value_heads(shape)))
    how = f"{engine.max_total_tokens:,} tokens x {shape.cached_per_token:,} in {dtype} (max_total_tokens){over}"
    yield Item(name="key-value cache", bytes=cache, how=how)
    sampled = running * shape.vocabulary * FLOAT32 * beside.logit_copies
    taken_in = beside.prefill_tokens * (3 * shape.text.inner // ranks + 8 * shape.text.width) * each
    yield Item(
        name="work",
        bytes=sampled + taken_in,
        how=f"logits of {running:,} requests, {beside.prefill_tokens:,} tokens taken in",
    )
    processes = beside.gpu_bytes if gpu else beside.cpu_bytes
    how = "CUDA, its graphs and libraries" if gpu else "without the files that they map"
    yield Item(name="the processes themselves", bytes=processes, how=how)


def _key_value_heads(shape: Shape) -> int:
    """Return how many there are: of more ranks, several hold the same head."""
    text = shape.model.config.get_text_config()
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
