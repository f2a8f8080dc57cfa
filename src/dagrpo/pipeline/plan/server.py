"""The memory of SGLang servers, the policy's and the teacher's."""

from collections.abc import Iterator

from dagrpo.engine.config import EngineConfig
from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32, GIBIBYTE, Item, Memory, memory
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.rollout.config import Dtype

PREFILLED = 4096  # tokens that the server takes in at once (chunked-prefill-size)
COPIES_OF_LOGITS = 3  # of the tokens that are sampled at the same time
PROCESSES_ON_GPU = int(2.5 * GIBIBYTE)  # CUDA's context, its graphs, and the libraries' workspaces
LEFT_BEHIND = ("the processes themselves",)  # of a server that has left its GPU
PACKED_ON_CPU: frozenset[Dtype] = frozenset({"float32", "bfloat16"})  # types whose weights dagrpo-sglang-cpu packs
MOST_PACKED = 2 * GIBIBYTE  # the largest model that it packs
PROCESSES_ON_CPU = int(1.5 * GIBIBYTE)  # scheduler, tokenizer and detokenizer, without the files that they map


def server_memory(what: str, shape: Shape, engine: EngineConfig, dtype: Dtype, requests: int, *, gpu: bool) -> Memory:
    """Return the memory of a server with `requests` running completions, on each of its GPUs, or on a CPU."""
    return memory(what, _items(shape, engine, dtype, requests, gpu=gpu))


def cache_bytes(shape: Shape, tokens: int, dtype: Dtype) -> int:
    """Return the bytes of the keys and values of these tokens."""
    return tokens * shape.cached_per_token * BYTES[dtype]


def _items(shape: Shape, engine: EngineConfig, dtype: Dtype, requests: int, *, gpu: bool) -> Iterator[Item]:
    each, running = BYTES[dtype], min(requests, engine.max_running_requests)
    ranks = engine.tensor_parallel if gpu else 1  # on a CPU they are side by side
    over = f", over {ranks} GPUs" if ranks > 1 else ""
    yield Item(
        name="weights", bytes=-(-shape.weights // ranks) * each, how=f"{dtype}, {shape.weights:,} parameters{over}"
    )
    if not gpu and dtype in PACKED_ON_CPU and shape.weights * each <= MOST_PACKED:
        yield Item(
            name="packed weights", bytes=shape.weights * each, how="copies as oneDNN wants them, on a CPU up to 2 GiB"
        )
    cache = -(-cache_bytes(shape, engine.max_total_tokens, dtype) // min(ranks, _key_value_heads(shape)))
    how = f"{engine.max_total_tokens:,} tokens x {shape.cached_per_token:,} in {dtype} (max_total_tokens){over}"
    yield Item(name="key-value cache", bytes=cache, how=how)
    sampled = running * shape.vocabulary * FLOAT32 * COPIES_OF_LOGITS
    taken_in = PREFILLED * (3 * shape.text.inner // ranks + 8 * shape.text.width) * each
    yield Item(
        name="work", bytes=sampled + taken_in, how=f"logits of {running:,} requests, {PREFILLED:,} tokens taken in"
    )
    processes = PROCESSES_ON_GPU if gpu else PROCESSES_ON_CPU
    how = "CUDA, its graphs and libraries" if gpu else "three of Python"
    yield Item(name="the processes themselves", bytes=processes, how=how)


def _key_value_heads(shape: Shape) -> int:
    """Return how many there are: of more ranks, several hold the same head."""
    text = shape.model.config.get_text_config()
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
