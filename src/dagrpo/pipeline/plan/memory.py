"""The memory of stages that train or sample, on device and host."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from dagrpo.config.schema import Params
from dagrpo.engine.config import EngineConfig
from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32, Item, Memory, memory
from dagrpo.pipeline.plan.models import picture_pixels, policy_shape, teacher_shape
from dagrpo.pipeline.plan.sequences import Lengths
from dagrpo.pipeline.plan.server import LEFT_BEHIND, server_memory
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.pipeline.plan.training import AT_REST, of_sft, of_train

TRAINING, SERVER, TEACHER_SERVER = "training process", "rollout server", "server of the teacher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The shapes that an experiment is planned with; they do not change with a smaller batch."""

    policy: Shape
    teacher: Shape | None  # None without one
    pixels: int | None  # of a picture, at most; None: none are shown, or it is not known how large they are

    @classmethod
    def of(cls, params: Params, *, online: bool = False) -> Self:
        """Return those of an experiment. UserError: a config is not on this machine."""
        policy = policy_shape(params, online=online)
        pixels = picture_pixels(params) if policy.pictures is not None else None
        return cls(policy=policy, teacher=teacher_shape(params, policy, online=online), pixels=pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The peak memory of a stage, item by item."""

    stage: str
    on_device: tuple[Memory, ...]  # on the fullest device, that of rank 0 and the engine; without a GPU: on the machine
    on_host: tuple[Memory, ...]  # beside a GPU, in the machine's own memory; without a GPU: nothing

    @property
    def total(self) -> int:
        """Return the bytes on the device."""
        return sum(each.total for each in self.on_device)


def stages(params: Params, models: Models, *, on_gpu: bool) -> list[StageMemory]:
    """Return the memory of every stage that needs much. UserError: there is no such task, or an adapter names no layer."""
    found = [_sft(params, models, on_gpu=on_gpu)] if params.sft.steps else []
    return [*found, _train(params, models, on_gpu=on_gpu), _sample(params, models, on_gpu=on_gpu)]


def least(params: Params, models: Models, *, on_gpu: bool) -> int:
    """Return bytes of a device that are needed however little an update takes, which is not counted. UserError: as of `stages`."""
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
    handed = (*_handed_over(params, models.policy, params.runtime.engine), *_held(params, models.policy))
    return StageMemory(
        stage="train",
        on_device=(*ranks, *servers) if on_gpu else (*ranks, *servers, *handed),
        on_host=(*_loading(models.policy), *handed) if on_gpu else (),
    )


def _in_turns(ranks: tuple[Memory, ...], servers: tuple[Memory, ...]) -> tuple[tuple[Memory, ...], tuple[Memory, ...]]:
    """Return, where the server leaves its GPU for updates, the moment at which process and server take more together."""
    (process,), (server, *others) = ranks, servers
    updating = (process, server.only(LEFT_BEHIND))
    sampling = (process.only(AT_REST), server)
    process, server = max(updating, sampling, key=lambda together: sum(each.total for each in together))
    return (process,), (server, *others)


def _apart(ranks: tuple[Memory, ...], servers: tuple[Memory, ...]) -> tuple[tuple[Memory, ...], tuple[Memory, ...]]:
    """Return, where the policy's server has a GPU to itself, that one, or the process with the teacher beside it, whichever takes more."""
    server, *teacher = servers
    beside = sum(each.total for each in (*ranks, *teacher))
    return ((), (server,)) if server.total > beside else (ranks, (*teacher,))


def _sample(params: Params, models: Models, *, on_gpu: bool) -> StageMemory:
    engine = params.runtime.engine
    servers = _own_server(SERVER, params, models.policy, engine, engine.max_running_requests, on_gpu=on_gpu)
    return StageMemory(stage="evaluation", on_device=tuple(servers), on_host=())


def _of_ranks(process: Memory, processes: int, *, on_gpu: bool) -> tuple[Memory, ...]:
    """Return the processes on one device: on a GPU each has its own, on a CPU they are side by side."""
    return (process,) if on_gpu else (process,) * processes


def _servers(params: Params, models: Models, *, on_gpu: bool) -> Iterator[Memory]:
    training = params.training
    drawn = training.prompts_per_step * training.dynamic_sampling.oversampling
    requests = round(drawn * training.samples_per_prompt)
    yield from _own_server(SERVER, params, models.policy, params.runtime.engine, requests, on_gpu=on_gpu)
    if models.teacher is not None:
        engine = params.runtime.teacher
        yield from _own_server(TEACHER_SERVER, params, models.teacher, engine, requests, on_gpu=on_gpu)


def _own_server(
    what: str, params: Params, shape: Shape, engine: EngineConfig, requests: int, *, on_gpu: bool
) -> Iterator[Memory]:
    """Yield servers, none where they run elsewhere. On a GPU each has its own device; on a CPU they are side by side."""
    if not engine.servers:
        server = server_memory(what, shape, engine, params.rollout.dtype, requests, gpu=on_gpu)
        yield from (server,) * (1 if on_gpu else engine.replicas)


def _handed_over(params: Params, shape: Shape, engine: EngineConfig) -> tuple[Memory, ...]:
    """Return the weights in /dev/shm, from which the server reads them."""
    if engine.weights_folder is not None:
        return ()
    dtype = params.rollout.dtype
    item = Item(name="weights", bytes=shape.weights * BYTES[dtype], how=f"{dtype}, {shape.weights:,} parameters")
    return (memory("hand-over in /dev/shm", [item]),)


def _held(params: Params, shape: Shape) -> tuple[Memory, ...]:
    """Return what the trainer keeps for batches of later steps, weights or served adapters: the most there are, at the end of a run."""
    training, dtype = params.training, params.rollout.dtype
    if not training.staleness:
        return ()
    numbers = shape.handed_over(training.lora, training.vision)
    how = f"{training.staleness} x {dtype}, {numbers:,} parameters"
    item = Item(name="weights", bytes=training.staleness * numbers * BYTES[dtype], how=how)
    return (memory("weights of training.staleness", [item]),)


def _loading(shape: Shape) -> tuple[Memory, ...]:
    """Return a model in the machine's memory, where it is made before it goes to its GPU."""
    item = Item(name="weights", bytes=shape.weights * FLOAT32, how=f"float32, {shape.weights:,} parameters")
    return (memory("model on its way to the GPU", [item]),)
