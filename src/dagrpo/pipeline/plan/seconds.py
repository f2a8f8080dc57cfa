"""Duration of stages: recorded, or else estimated."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dagrpo.config.schema import Params
from dagrpo.data.task import get_task
from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32
from dagrpo.pipeline.plan.measured import Measured
from dagrpo.pipeline.plan.sequences import Lengths, prompts_of, usual_prompt
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.pipeline.plan.speed import Speed
from dagrpo.pipeline.plan.training import Training, of_sft, of_train

HAND_OVER_BYTES = 1e9  # per second, through a file in memory
COPIES_OF_BUCKETS = 3  # of every weight: cast into a bucket, read by the server, and written into its own
# Bytes for each trained parameter: the gradient's norm and its clipping 12, AdamW 28 (four numbers read, three written).
OPTIMIZER_BYTES = 40
POLICIES = 2  # that are evaluated: base and trained
START_SECONDS = 25.0  # of a server of ours, until it answers
LEFT_OUT = (
    "Left out: preparing data, loading and saving checkpoints, grading, tools, users and programs that a policy waits for, the "
    "vision tower, what processes send each other, and waiting for other jobs. Every completion is taken to be as long as it may be."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Duration of one stage, all seeds one after the other."""

    stage: str
    seconds: float | None  # None: not known before the stage prepare has run
    how: Literal["estimated", "measured"]
    runs: int  # how often it runs
    steps: int | None = None  # of one run; None: it has none
    of_a_step: Mapping[str, float] = field(default_factory=dict)  # seconds by part
    tokens_per_second: float | None = None  # of an estimated update, by all processes, prompts included
    mfu: float | None = (
        None  # its FLOPs (trainer/metrics/throughput.py) in those of the GPUs' peak in the type it computes in
    )


def seconds_of_stages(params: Params, shape: Shape, speed: Speed | None, measured: Measured) -> list[StageSeconds]:
    """Return the duration of every long stage; without a speed only recorded ones."""
    return [stage for stage in _stages(params, shape, speed, measured) if stage is not None]


def _stages(params: Params, shape: Shape, speed: Speed | None, measured: Measured) -> Iterator[StageSeconds | None]:
    seeds = len(params.experiment.seeds)
    if params.sft.steps:
        yield _from_record("sft", seeds, params.sft.steps, measured) or _if_known(_sft, params, shape, speed)
    if params.difficulty.samples:
        yield _from_record("difficulty", 1, None, measured) or _if_known(_difficulty, params, shape, speed)
    yield _train_as_before(params, measured) or _if_known(_train, params, shape, speed)
    yield _from_record("evaluation", seeds * _samplings(params), None, measured) or _if_known(
        _evaluation, params, shape, speed
    )


def _if_known(
    estimated: Callable[[Params, Shape, Speed], StageSeconds], params: Params, shape: Shape, speed: Speed | None
) -> StageSeconds | None:
    return None if speed is None else estimated(params, shape, speed)


def _from_record(stage: str, runs: int, steps: int | None, measured: Measured) -> StageSeconds | None:
    each = measured.stages.get(stage)
    if each is None:
        return None
    return StageSeconds(stage=stage, seconds=runs * each, how="measured", runs=runs, steps=steps)


def _train_as_before(params: Params, measured: Measured) -> StageSeconds | None:
    if not measured.steps:
        return None
    seeds, steps = len(params.experiment.seeds), params.training.steps
    beside = START_SECONDS if measured.beside_steps is None else measured.beside_steps
    total = seeds * (steps * sum(measured.steps.values()) + beside)
    return StageSeconds(stage="train", seconds=total, how="measured", runs=seeds, steps=steps, of_a_step=measured.steps)


def _sft(params: Params, shape: Shape, speed: Speed) -> StageSeconds:
    training = of_sft(params, shape, Lengths.of_training(params, shape.positions), None, gpu=speed.is_of_gpu)
    step, seeds = _update(training, params, speed, mini_batches=1), len(params.experiment.seeds)
    return StageSeconds(
        stage="sft",
        seconds=seeds * params.sft.steps * step,
        how="estimated",
        runs=seeds,
        steps=params.sft.steps,
        of_a_step={"update": step},
    )


def _train(params: Params, shape: Shape, speed: Speed) -> StageSeconds:
    training, lengths = params.training, Lengths.of_training(params, shape.positions)
    prompts = training.dynamic_sampling.oversampling * training.prompts_per_step
    sampling = sampling_seconds(
        shape,
        params,
        speed,
        attempts=round(prompts * training.samples_per_prompt),
        prompts=round(prompts),
        prompt=usual_prompt(params, params.experiment.train, "train"),
        lengths=lengths,
    )
    of_update = of_train(params, shape, lengths, None, gpu=speed.is_of_gpu)
    update = _update(of_update, params, speed, mini_batches=training.mini_batches)
    parts = {
        "rollout": _waited_for(sampling, update, params, speed),
        "update": update,
        "hand over": _sync_seconds(of_update, params, speed),
    }
    seeds = len(params.experiment.seeds)
    tokens, flops = _of_model(of_update, params, lengths)
    peak = speed.gpu.peak(training.dtype) * of_update.processes if speed.gpu is not None else None
    return StageSeconds(
        stage="train",
        seconds=seeds * (training.steps * sum(parts.values()) + START_SECONDS),
        how="estimated",
        runs=seeds,
        steps=training.steps,
        of_a_step=parts,
        tokens_per_second=tokens / update,
        mfu=None if peak is None else flops / update / peak,
    )


def _of_model(training: Training, params: Params, lengths: Lengths) -> tuple[int, float]:
    """Return the tokens of a step, and the FLOPs of its update by the model's arithmetic alone."""
    arithmetic = training.shape.arithmetic
    if params.training.lora.is_on:
        arithmetic = replace(arithmetic, frozen=arithmetic.parameters)
    length = min(lengths.written + usual_prompt(params, params.experiment.train, "train"), lengths.whole)
    sequences = params.training.prompts_per_step * params.training.samples_per_prompt
    return sequences * length, sequences * arithmetic.update([length])


def _update(training: Training, params: Params, speed: Speed, *, mini_batches: int) -> float:
    """Return the seconds of a step's update, with prompts of the usual length."""
    batch, passes = training.passes.batch, training.passes
    usual = batch.written + usual_prompt(params, params.experiment.train, "train")
    micro_batches = mini_batches * batch.share / batch.sequences * min(usual / batch.longest, 1.0)
    if not speed.is_of_gpu:
        together = 1 if speed.cores else training.processes
        flops = training.work.flops * micro_batches * training.processes
        return flops / (speed.update if passes.dtype == params.training.dtype else speed.fine_tuning) / together
    compiled = _is_compiled(training, params)
    optimizer = OPTIMIZER_BYTES * training.trained.trained / training.processes / speed.bandwidth
    return micro_batches * training.work.sum(speed.seconds_of, compiled=compiled) + mini_batches * optimizer


def _is_compiled(training: Training, params: Params) -> bool:
    """Return True if torch compiles the layers of GRPO's policy, as trainer/model/compiled.py decides without a trial."""
    passes, setting = training.passes, params.runtime.training.compile
    plain = not (passes.sharded or passes.lora.is_on or training.shape.pictures)
    return plain and (not params.rollout.deterministic if setting is None else setting)


def _sync_seconds(training: Training, params: Params, speed: Speed) -> float:
    """Return the seconds of a weight sync, or of the adapter that is served: on a GPU in buckets, else by a file."""
    numbers = training.shape.synced_numbers(params.training.lora, params.training.vision)
    size = numbers * BYTES[params.rollout.dtype]
    if training.sync_bytes:
        return COPIES_OF_BUCKETS * numbers * FLOAT32 / speed.bandwidth
    return 2 * size / HAND_OVER_BYTES


def sampling_seconds(
    shape: Shape, params: Params, speed: Speed, *, attempts: int, prompts: int, prompt: int, lengths: Lengths
) -> float:
    """Return the seconds of `attempts` completions of the greatest length for each of `prompts` prompts.

    The slower one of two: computing, 2 N for each token that is sampled or read (a prompt once for all of its attempts), and reading the
    weights, once for each step of decoding. In addition, reading every attempt's keys and values so far. GPUs with tensor parallelism share
    all of it; their communication is not counted.
    """
    engine, dtype = params.runtime.engine, params.rollout.dtype
    ranks = 1 if speed.cores else engine.tensor_parallel
    servers = len(engine.servers) or (1 if speed.cores else engine.replicas)
    running = max(min(engine.max_running_requests, engine.max_total_tokens // lengths.whole), 1)
    attempts, prompts = -(-attempts // servers), -(-prompts // servers)
    steps = -(-attempts // running) * lengths.written
    tokens = attempts * lengths.written
    computing = 2 * shape.arithmetic.parameters * (tokens + prompts * prompt) / speed.sampling
    reading = steps * shape.weights * BYTES[dtype] / speed.bandwidth
    cache_bytes = (prompt + lengths.whole) / 2 * shape.cached_per_token * BYTES[dtype]
    return (max(computing, reading) + tokens * cache_bytes / speed.cache_bandwidth) / ranks + steps * speed.per_step


def _waited_for(sampling: float, update: float, params: Params, speed: Speed) -> float:
    """Return the seconds that a step waits for sampling: only those beyond the update if both overlap."""
    return max(sampling - update, 0.0) if params.training.staleness and _is_beside(params, speed) else sampling


def _is_beside(params: Params, speed: Speed) -> bool:
    """Return True if the engine does not share the trainer's device: other machines, other GPUs, or separate cores."""
    engine = params.runtime.engine
    if engine.servers or speed.cores is None:
        return bool(engine.servers) or engine.own_gpus
    return params.runtime.training.all_threads + engine.threads * engine.replicas <= speed.cores


def _difficulty(params: Params, shape: Shape, speed: Speed) -> StageSeconds:
    train = params.experiment.train
    problems, lengths = prompts_of(params, train, "train"), Lengths.of_training(params, shape.positions)
    seconds = None
    if problems is not None:
        attempts, prompt = problems * params.difficulty.samples, usual_prompt(params, train, "train")
        seconds = START_SECONDS + sampling_seconds(
            shape, params, speed, attempts=attempts, prompts=problems, prompt=prompt, lengths=lengths
        )
    return StageSeconds(stage="difficulty", seconds=seconds, how="estimated", runs=1)


def _evaluation(params: Params, shape: Shape, speed: Speed) -> StageSeconds:
    runs = len(params.experiment.seeds) * _samplings(params)
    each = [_of_task(params, task, shape, speed) for task in _evaluated(params)]
    seconds_known = [seconds for seconds in each if seconds is not None]
    seconds = sum(seconds_known) * POLICIES * len(params.experiment.seeds) if len(seconds_known) == len(each) else None
    return StageSeconds(stage="evaluation", seconds=seconds, how="estimated", runs=runs)


def _of_task(params: Params, task: str, shape: Shape, speed: Speed) -> float | None:
    problems, sampling = prompts_of(params, task, "test"), params.evaluation.sampling
    if problems is None and sampling.max_problems is None:
        return None
    counts = [count for count in (problems, sampling.max_problems) if count is not None]
    blind = get_task(task).images and sampling.without_pictures
    problems = min(counts)
    return START_SECONDS + sampling_seconds(
        shape,
        params,
        speed,
        attempts=problems * (1 + sampling.samples + blind),
        prompts=problems * (1 + blind),
        prompt=usual_prompt(params, task, "test"),
        lengths=Lengths.of_evaluation(params, task, shape.positions),
    )


def _samplings(params: Params) -> int:
    """Return the number of runs of the stage sample per seed."""
    return POLICIES * len(_evaluated(params))


def _evaluated(params: Params) -> list[str]:
    return [task for task in params.experiment.evaluate if params.evaluation.oracles or not get_task(task).oracle]
