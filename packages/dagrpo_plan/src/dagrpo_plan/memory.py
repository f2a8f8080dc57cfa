"""Bytes of an experiment: of its stages in memory, and on disk."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from dagrpo.config.schema import Params
from dagrpo.engine import engine_of
from dagrpo.engine.config import EngineConfig
from dagrpo.pipeline.stages import convert, export, model, sample, sft, teacher, train
from dagrpo.rollout.attempts_file import is_kept
from dagrpo.rollout.config import Dtype, KeepRollouts
from dagrpo.trainer.sft import KEPT_STATES
from dagrpo.trainer.state.tensors import KEPT_WHILE_RUNNING, state_bytes
from dagrpo.utils.console import size
from dagrpo_plan.amounts import BYTES, FLOAT32, Item, Lengths, Memory, memory, usual_training_prompt
from dagrpo_plan.models import Models, Shape
from dagrpo_plan.training import AT_REST, Training, of_sft, of_train, trains_itself

LEFT_BEHIND = ("the processes themselves",)  # of a server that has left its GPU
SERVER, TEACHER_SERVER, REWARD_SERVER = "rollout server", "server of the teacher", "server of the reward model"
SYNC = "weight sync in /dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak memory of a stage, item by item."""

    stage: str
    on_device: tuple[Memory, ...]  # on the fullest device, that of rank 0 and the engine; without a GPU: on the machine
    on_host: tuple[Memory, ...] = ()  # beside a GPU, in the machine's own memory; without a GPU: nothing

    @property
    def total(self) -> int:
        """The bytes on the device."""
        return sum(each.total for each in self.on_device)


def stages(params: Params, models: Models, *, on_gpu: bool, memory: int | None = None) -> list[StageMemory]:
    """Return the memory of every stage that needs much, but of train with another backend's program.

    memory: of a GPU, in bytes, of which a cache without a size takes what is left; None: it is not counted.
    Raises UserError for an unknown task, or an adapter that names no layer.
    """
    found = list[StageMemory]()
    if params.sft.steps:
        training = of_sft(params, models, gpu=on_gpu)
        on_device = (training.memory(),) * (1 if on_gpu else training.processes)
        on_host = _loading(models.policy) if on_gpu else ()
        found.append(StageMemory(stage=sft.STAGE.name, on_device=on_device, on_host=on_host))
    if trains_itself(params):
        found.append(_train(params, models, on_gpu=on_gpu, memory=memory))
    engine, dtype = params.runtime.engine.on_one_machine, params.rollout.dtype
    tokens, most = cache_tokens(models.policy, engine, dtype, memory), engine.max_running_requests
    server = server_memory(SERVER, models.policy, engine, dtype, most, gpu=on_gpu, tokens=tokens)
    servers = _copies(engine, server, on_gpu=on_gpu)
    return [*found, StageMemory(stage=sample.STAGE.name, on_device=tuple(each for _, each in servers))]


def longest_sequence(params: Params, models: Models) -> int:
    """Return the tokens of the longest trajectory of training or evaluation."""
    positions, tasks = models.policy.positions, params.experiment.evaluate
    evaluated = [Lengths.of_evaluation(params, task, positions).whole for task in tasks]
    return max(Lengths.of_training(params, positions).whole, *evaluated)


def cache_tokens(shape: Shape, engine: EngineConfig, dtype: Dtype, memory: int | None, held: int = 0) -> int | None:
    """Return the tokens that a server's cache holds; None if that depends on a GPU whose memory is not known.

    memory: of each of its GPUs, in bytes, of which another process holds `held` when the server starts.
    """
    if engine.max_total_tokens is not None or memory is None:
        return engine.max_total_tokens
    static = engine_of(engine).footprint.static_share(engine, memory) * (memory - held)
    left = max(static - shape.weights * BYTES[dtype] / engine.ranks, 0)
    return int(left * min(engine.ranks, shape.key_value_heads) / (shape.cached_per_token * BYTES[dtype]))


def server_memory(
    what: str, shape: Shape, engine: EngineConfig, dtype: Dtype, requests: int, *, gpu: bool, tokens: int | None = None
) -> Memory:
    """Return the memory of a server with `requests` running completions, on each of its GPUs, or on a CPU. tokens: of its cache."""
    tokens = engine.max_total_tokens or tokens or 0
    each, running = BYTES[dtype], min(requests, engine.max_running_requests)
    beside = engine_of(engine).footprint
    ranks = engine.ranks if gpu else 1  # on a CPU they are side by side
    over = f", over {ranks} GPUs" if ranks > 1 else ""
    how = f"{dtype}, {shape.weights:,} parameters{over}"
    items = [Item(name="weights", bytes=-(-shape.weights // ranks) * each, how=how)]
    if not gpu and dtype in beside.packed_dtypes and shape.weights * each <= beside.packed_limit:
        items.append(Item(name="packed weights", bytes=shape.weights * each, how="copies in another layout, on a CPU"))
    # With more ranks than key-value heads, several hold the same one.
    cache = -(-tokens * shape.cached_per_token * each // min(ranks, shape.key_value_heads))
    left = ", what is left" if engine.max_total_tokens is None else ""
    how = f"{tokens:,} tokens x {shape.cached_per_token:,} in {dtype} (max_total_tokens{left}){over}"
    items.append(Item(name="key-value cache", bytes=cache, how=how))
    sampled = running * shape.text.vocab_size * FLOAT32 * beside.logit_copies
    taken_in = beside.prefill_tokens * (3 * shape.mlp_width // ranks + 8 * shape.text.hidden_size) * each
    how = f"logits of {running:,} requests, {beside.prefill_tokens:,} tokens taken in"
    items.append(Item(name="work", bytes=sampled + taken_in, how=how))
    processes = beside.gpu_bytes if gpu else beside.cpu_bytes
    how = "CUDA, its graphs and libraries" if gpu else "without the files that they map"
    return memory(what, [*items, Item(name="the processes themselves", bytes=processes, how=how)])


def _train(params: Params, models: Models, *, on_gpu: bool, memory: int | None) -> StageMemory:
    training = of_train(params, models, gpu=on_gpu)
    ranks = (training.memory(),) * (1 if on_gpu else params.runtime.training.processes)
    servers = [*_servers(params, models, on_gpu=on_gpu, memory=memory, held=held_beside(params, training))]
    synced = tuple(_weight_copies(params, models.policy))
    if not on_gpu:
        together = (*ranks, *(server for _, server in servers), *synced)
        return StageMemory(stage=train.STAGE.name, on_device=together)
    # What a process gathers for the engine, and still caches when a server's key-value cache comes back.
    largest = models.policy.text.vocab_size * models.policy.text.hidden_size * BYTES[params.rollout.dtype]
    bucket = max(engine_of(params.runtime.engine).footprint.sync_bytes, largest)
    how = "a bucket, and the largest tensor gathered for it"
    gathered = Item(name="weights on their way", bytes=bucket + largest, how=how)
    return StageMemory(
        stage=train.STAGE.name,
        on_device=_fullest_gpu(ranks, servers, gathered),
        on_host=(*_loading(models.policy), *synced),
    )


def held_beside(params: Params, training: Training) -> int:
    """Return the bytes that a process holds of a server's GPU when it starts: weights and moments; 0 if they have different GPUs."""
    engine = params.runtime.engine
    return 0 if engine.own_gpus or engine.serves_elsewhere else training.memory().only(AT_REST).total


def _fullest_gpu(
    ranks: Sequence[Memory], servers: Sequence[tuple[EngineConfig, Memory]], gathered: Item
) -> tuple[Memory, ...]:
    """Return what is on the fullest GPU at its fullest: the policy's in the update or beside the server that has come back, or one of
    a server alone. Between updates a process returns what it caches (trainer/weight_sync.py).
    """
    resting = [process.only(AT_REST) for process in ranks]
    updating, sampling = [*ranks], [replace(process, items=(*process.items, gathered)) for process in resting]
    alone = [[server] for config, server in servers if config.own_gpus or config.nodes]
    for config, server in servers:
        if not (config.own_gpus or config.nodes):
            updating.append(server.only(LEFT_BEHIND) if config.release_memory else server)
            sampling.append(server)
    return tuple(max((updating, sampling, *alone), key=lambda together: sum(each.total for each in together)))


def _servers(
    params: Params, models: Models, *, on_gpu: bool, memory: int | None, held: int
) -> Iterator[tuple[EngineConfig, Memory]]:
    training = params.training
    prompts = training.prompts_per_step * training.dynamic_sampling.oversampling
    requests = round(prompts * training.samples_per_prompt)
    tokens = cache_tokens(models.policy, params.runtime.engine, params.rollout.dtype, memory, held)
    for what, shape, engine, own in (
        (SERVER, models.policy, params.runtime.engine, tokens),
        (TEACHER_SERVER, models.teacher, params.runtime.teacher, None),
        (REWARD_SERVER, models.reward_model, params.runtime.reward_model, None),
    ):
        if shape is not None:
            server = server_memory(what, shape, engine, params.rollout.dtype, requests, gpu=on_gpu, tokens=own)
            yield from _copies(engine, server, on_gpu=on_gpu)


def _copies(engine: EngineConfig, server: Memory, *, on_gpu: bool) -> list[tuple[EngineConfig, Memory]]:
    """Return the servers, none if they run elsewhere. On a GPU each has its own device; on a CPU they share it."""
    return [] if engine.servers else [(engine, server)] * (1 if on_gpu else engine.replicas)


def _weight_copies(params: Params, shape: Shape) -> Iterator[Memory]:
    """Yield the weights in /dev/shm, from which the server reads them, and the trainer's copies for batches of later steps."""
    training, dtype = params.training, params.rollout.dtype
    if params.runtime.engine.weights_folder is None and not params.runtime.engine.nodes:  # which get them in a folder
        yield _of_weights(SYNC, shape.weights, dtype)
    if training.staleness:  # the largest number, at the end of a run; of a served adapter it alone
        numbers = shape.synced_numbers(training.lora, training.vision)
        yield _of_weights("weights of training.staleness", numbers, dtype, training.staleness)


def _loading(shape: Shape) -> tuple[Memory, ...]:
    """Return a model in the machine's memory, where it is built before it moves to its GPU."""
    return (_of_weights("model on its way to the GPU", shape.weights, "float32"),)


def _of_weights(what: str, numbers: int, dtype: Dtype, copies: int = 1) -> Memory:
    times = f"{copies} x " if copies > 1 else ""
    how = f"{times}{dtype}, {numbers:,} parameters"
    return memory(what, [Item(name="weights", bytes=copies * numbers * BYTES[dtype], how=how)])


BYTES_OF_A_TOKEN = {"all": 7.0, "rounded": 4.0}  # in a file: id, text and logprobs, compressed; see docs/benchmarks.md
BYTES_OF_A_ROW = 50  # in a file, beside its tokens
# Shares of a checkpoint that a kept policy takes after one step and after 20 with learning rates of 1e-6, 1e-5 and 1e-4, as measured with
# SmolLM2-135M by benchmarks/kept_policies.py; float16 lies between the two.
SHARES = {
    "bfloat16": ((0.005, 0.009), (0.012, 0.043), (0.064, 0.21)),
    "float32": ((0.25, 0.39), (0.33, 0.50), (0.44, 0.60)),
}
ROLLOUTS, STATES, KEPT, CACHE = "rollouts", "states", "kept policies", "DVC's cache"
REMEDIES = {
    ROLLOUTS: "set runtime.keep_rollouts to rounded, a number of steps, best_and_worst or none",
    KEPT: "keep fewer steps in training.keep_policies",
    STATES: "set runtime.training.keep_states to 0 where there are several seeds, or train an adapter (training.lora.rank)",
}
OTHERWISE = "take fewer experiment.seeds"


def disk_of(params: Params, models: Models) -> tuple[Item, ...]:
    """Return what the experiment takes on disk at its peak, by item.

    Raises UserError for an unknown task, or an adapter that names no layer.
    """
    outputs = (*_checkpoints(params, models), *([_rollouts(params, models)] if trains_itself(params) else []))
    outputs = (*outputs, *_kept(params, models))
    stored = sum(each.bytes for each in outputs)
    cache = Item(name=CACHE, bytes=stored, how="a copy of every output; nothing on a disk with reflinks (btrfs, xfs)")
    return memory("disk", (*outputs, *_states(params, models), cache)).items


def disk_note(items: tuple[Item, ...], free: int) -> str | None:
    """Return a sentence with a remedy if the items do not fit on the disk; None if they do."""
    total = sum(each.bytes for each in items)
    largest = max((each for each in items if each.name != CACHE), key=lambda each: each.bytes)
    if total <= free:
        return None
    return (
        f"The experiment takes {size(total)} on disk, and {size(free)} are free here; {largest.name} take {size(largest.bytes)}: "
        f"{REMEDIES.get(largest.name, OTHERWISE)}; or choose a disk with more room."
    )


def _rollouts(params: Params, models: Models) -> Item:
    """Return the tables of all seeds, with completions of the greatest length and prompts of the usual one."""
    training, seeds = params.training, len(params.experiment.seeds)
    lengths = Lengths.of_training(params, models.policy.positions)
    tokens = min(lengths.written + usual_training_prompt(params), lengths.whole)
    attempts = round(training.prompts_per_step * training.dynamic_sampling.oversampling) * training.samples_per_prompt
    number = seeds * training.steps * attempts
    keep = params.runtime.keep_rollouts
    each = _bytes_of_a_token(keep, training.steps, training.samples_per_prompt)
    how = f"{each:.2g} bytes for each of {tokens:,} tokens of {number:,} completions (runtime.keep_rollouts: {keep})"
    return Item(name=ROLLOUTS, bytes=round((each * tokens + BYTES_OF_A_ROW) * number), how=how)


def _bytes_of_a_token(keep: KeepRollouts, steps: int, samples_per_prompt: int) -> float:
    """Return the mean bytes of a token in the tables of a run of `steps` steps."""
    if isinstance(keep, int):
        return BYTES_OF_A_TOKEN["all"] * sum(map(partial(is_kept, keep), range(1, steps + 1))) / steps
    if keep == "best_and_worst":
        return BYTES_OF_A_TOKEN["all"] * min(1.0, 2 / samples_per_prompt)
    return BYTES_OF_A_TOKEN.get(keep, 0.0)


def _checkpoints(params: Params, models: Models) -> Iterator[Item]:
    """Yield the checkpoint of each stage that writes one; equal files are links."""
    weights, seeds, own = models.policy.weights, len(params.experiment.seeds), params.model.dtype
    yield _checkpoint(model.STAGE.name, weights, own, 1)
    if models.teacher is not None and params.algorithm.teacher.source != "initial":
        yield _checkpoint(teacher.STAGE.name, models.teacher.weights, params.algorithm.teacher.dtype, 1)
    if params.sft.steps:
        yield _checkpoint(sft.STAGE.name, weights, "float32", seeds)
    converts = params.checkpoint.format != "huggingface"
    yield _checkpoint(convert.STAGE.name, weights, "float32" if params.sft.steps else own, seeds * converts)
    yield _checkpoint(train.STAGE.name, weights, "float32", seeds)
    yield _checkpoint(export.STAGE.name, weights, "float32", seeds * converts)


def _checkpoint(stage: str, weights: int, dtype: str, copies: int) -> Item:
    how = f"{copies} x {weights:,} parameters in {dtype}"
    return Item(name=f"checkpoint of {stage}", bytes=copies * weights * BYTES[dtype], how=how)


def _kept(params: Params, models: Models) -> Iterator[Item]:
    """Yield the differences of the kept policies of all seeds."""
    kept, rate, dtype = params.training.kept_steps, params.training.learning_rate, params.rollout.dtype
    if kept:
        shares = sum(share_of_a_delta(rate, step - before, dtype) for before, step in pairwise([0, *kept]))
        whole = models.policy.weights * BYTES[dtype]
        how = f"{len(kept)} x {shares / len(kept):.1%} of {size(whole)}, as SmolLM2-135M changes at this learning rate"
        yield Item(name=KEPT, bytes=round(len(params.experiment.seeds) * shares * whole), how=how)


def share_of_a_delta(rate: float, steps: int, dtype: Dtype) -> float:
    """Return the share of a checkpoint that the difference of policies `steps` steps apart takes, at a learning rate."""
    rows = SHARES.get(dtype, SHARES["float32"])
    one, many = (float(np.interp(math.log10(rate), (-6, -5, -4), column)) for column in zip(*rows, strict=True))
    return min(1.0, one * math.pow(many / one, math.log(steps, 20)))


def _states(params: Params, models: Models) -> Iterator[Item]:
    """Yield the states of train while the last seed runs, two policies between which a difference is taken, and states of sft."""
    seeds, keep = len(params.experiment.seeds), params.runtime.training.keep_states
    trained = models.policy.trained(params.training.lora, params.training.vision)
    moments = params.training.moments_dtype
    number = max(keep, KEPT_WHILE_RUNNING) + keep * (seeds - 1)
    how = f"{number} x a weight in float32 and two moments in {moments} of {trained.trained:,} trained parameters"
    yield Item(name=STATES, bytes=number * state_bytes(trained.trained, moments), how=how)
    if params.training.keep_policies is not None:
        whole = 2 * models.policy.weights * BYTES[params.rollout.dtype]
        yield Item(name="whole policies", bytes=whole, how=f"2 in {params.rollout.dtype}, while one is kept")
    tuned = models.policy.trained(params.sft.lora, params.sft.vision).trained if params.sft.steps else 0
    kept = seeds * KEPT_STATES
    left = kept * state_bytes(tuned, params.sft.moments_dtype)
    yield Item(name=f"states of {sft.STAGE.name}", bytes=left, how=f"{kept} at the end of their runs")
