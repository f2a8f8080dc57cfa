"""The memory of stages that train or sample, on device and host."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from dagrpo.config.schema import Params
from dagrpo.engine import engine_of
from dagrpo.engine.config import EngineConfig
from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32, Item, Memory, memory
from dagrpo.pipeline.plan.models import picture_pixels, policy_shape, teacher_shape
from dagrpo.pipeline.plan.sequences import Lengths
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.pipeline.plan.training import AT_REST, of_sft, of_train
from dagrpo.rollout.config import Dtype

LEFT_BEHIND = ("the processes themselves",)  # of a server that has left its GPU
TRAINING, SERVER, TEACHER_SERVER = "training process", "rollout server", "server of the teacher"


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
    """Return the number of key-value heads in memory: with more ranks than heads, several hold the same one."""
    text = shape.model.config.get_text_config()
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Shapes of an experiment's models; they do not change with a smaller batch."""

    policy: Shape
    teacher: Shape | None  # None without one
    pixels: int | None  # of a picture, at most; None: none are shown, or it is not known how large they are

    @classmethod
    def of(cls, params: Params, *, online: bool = False) -> Self:
        """Return the models of an experiment. Raises UserError if a config is not on this machine."""
        policy = policy_shape(params, online=online)
        pixels = picture_pixels(params) if policy.pictures is not None else None
        return cls(policy=policy, teacher=teacher_shape(params, policy, online=online), pixels=pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak memory of a stage, item by item."""

    stage: str
    on_device: tuple[Memory, ...]  # on the fullest device, that of rank 0 and the engine; without a GPU: on the machine
    on_host: tuple[Memory, ...]  # beside a GPU, in the machine's own memory; without a GPU: nothing

    @property
    def total(self) -> int:
        """The bytes on the device."""
        return sum(each.total for each in self.on_device)


def stages(params: Params, models: Models, *, on_gpu: bool) -> list[StageMemory]:
    """Return the memory of every stage that needs much. Raises UserError for an unknown task, or an adapter that names no layer."""
    stage_memories = [_sft(params, models, on_gpu=on_gpu)] if params.sft.steps else []
    return [*stage_memories, _train(params, models, on_gpu=on_gpu), _sample(params, models, on_gpu=on_gpu)]


def least(params: Params, models: Models, *, on_gpu: bool) -> int:
    """Return the bytes of a device that are needed without any update. Raises UserError like `stages`."""
    lengths = Lengths.of_training(params, models.policy.positions)
    training = of_train(params, models.policy, lengths, models.pixels, gpu=on_gpu)
    return max(training.certain, _sample(params, models, on_gpu=on_gpu).total)


def longest_sequence(params: Params, models: Models) -> int:
    """Return the tokens of the longest trajectory of training or evaluation."""
    positions, tasks = models.policy.positions, params.experiment.evaluate
    evaluated = [Lengths.of_evaluation(params, task, positions).whole for task in tasks]
    return max(Lengths.of_training(params, positions).whole, *evaluated)


def _sft(params: Params, models: Models, *, on_gpu: bool) -> StageMemory:
    lengths = Lengths.of_training(params, models.policy.positions)
    training = of_sft(params, models.policy, lengths, models.pixels, gpu=on_gpu)
    process = training.memory(TRAINING)
    return StageMemory(
        stage="sft",
        on_device=_of_ranks(process, training.processes, on_gpu=on_gpu),
        on_host=_loading(models.policy) if on_gpu else (),
    )


def _train(params: Params, models: Models, *, on_gpu: bool) -> StageMemory:
    lengths = Lengths.of_training(params, models.policy.positions)
    training = of_train(params, models.policy, lengths, models.pixels, gpu=on_gpu)
    ranks = _of_ranks(training.memory(TRAINING), training.processes, on_gpu=on_gpu)
    servers = tuple(_servers(params, models, on_gpu=on_gpu))
    if on_gpu and params.runtime.engine.release_memory:
        ranks, servers = _in_turns(ranks, servers)
    elif on_gpu and params.runtime.engine.own_gpus:
        ranks, servers = _apart(ranks, servers)
    synced = (*_sync_memory(params, models.policy, params.runtime.engine), *_tables(params, models.policy))
    return StageMemory(
        stage="train",
        on_device=(*ranks, *servers) if on_gpu else (*ranks, *servers, *synced),
        on_host=(*_loading(models.policy), *synced) if on_gpu else (),
    )


def _in_turns(ranks: tuple[Memory, ...], servers: tuple[Memory, ...]) -> tuple[tuple[Memory, ...], tuple[Memory, ...]]:
    """Return the larger of the two phases, sampling and update, if the server releases its GPU for updates."""
    (process,), (server, *others) = ranks, servers
    updating = (process, server.only(LEFT_BEHIND))
    sampling = (process.only(AT_REST), server)
    process, server = max(updating, sampling, key=lambda together: sum(each.total for each in together))
    return (process,), (server, *others)


def _apart(ranks: tuple[Memory, ...], servers: tuple[Memory, ...]) -> tuple[tuple[Memory, ...], tuple[Memory, ...]]:
    """Return the policy's server, if it has its own GPU, or the process with the teacher beside it, whichever is larger."""
    server, *teacher = servers
    beside = sum(each.total for each in (*ranks, *teacher))
    return ((), (server,)) if server.total > beside else (ranks, (*teacher,))


def _sample(params: Params, models: Models, *, on_gpu: bool) -> StageMemory:
    engine = params.runtime.engine
    servers = _own_server(SERVER, params, models.policy, engine, engine.max_running_requests, on_gpu=on_gpu)
    return StageMemory(stage="evaluation", on_device=tuple(servers), on_host=())


def _of_ranks(process: Memory, processes: int, *, on_gpu: bool) -> tuple[Memory, ...]:
    """Return the processes on one device: on a GPU each has its own, on a CPU they share it."""
    return (process,) if on_gpu else (process,) * processes


def _servers(params: Params, models: Models, *, on_gpu: bool) -> Iterator[Memory]:
    training = params.training
    prompts = training.prompts_per_step * training.dynamic_sampling.oversampling
    requests = round(prompts * training.samples_per_prompt)
    yield from _own_server(SERVER, params, models.policy, params.runtime.engine, requests, on_gpu=on_gpu)
    if models.teacher is not None:
        engine = params.runtime.teacher
        yield from _own_server(TEACHER_SERVER, params, models.teacher, engine, requests, on_gpu=on_gpu)


def _own_server(
    what: str, params: Params, shape: Shape, engine: EngineConfig, requests: int, *, on_gpu: bool
) -> Iterator[Memory]:
    """Yield servers, none if they run elsewhere. On a GPU each has its own device; on a CPU they share it."""
    if not engine.servers:
        server = server_memory(what, shape, engine, params.rollout.dtype, requests, gpu=on_gpu)
        yield from (server,) * (1 if on_gpu else engine.replicas)


def _sync_memory(params: Params, shape: Shape, engine: EngineConfig) -> tuple[Memory, ...]:
    """Return the weights in /dev/shm, from which the server reads them."""
    if engine.weights_folder is not None:
        return ()
    dtype = params.rollout.dtype
    item = Item(name="weights", bytes=shape.weights * BYTES[dtype], how=f"{dtype}, {shape.weights:,} parameters")
    return (memory("hand-over in /dev/shm", [item]),)


def _tables(params: Params, shape: Shape) -> tuple[Memory, ...]:
    """Return the trainer's copies for batches of later steps, of weights or served adapters: the largest number, at the end of a run."""
    training, dtype = params.training, params.rollout.dtype
    if not training.staleness:
        return ()
    numbers = shape.synced_numbers(training.lora, training.vision)
    how = f"{training.staleness} x {dtype}, {numbers:,} parameters"
    item = Item(name="weights", bytes=training.staleness * numbers * BYTES[dtype], how=how)
    return (memory("weights of training.staleness", [item]),)


def _loading(shape: Shape) -> tuple[Memory, ...]:
    """Return a model in the machine's memory, where it is built before it moves to its GPU."""
    item = Item(name="weights", bytes=shape.weights * FLOAT32, how=f"float32, {shape.weights:,} parameters")
    return (memory("model on its way to the GPU", [item]),)
