"""Duration of stages: recorded, or else estimated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from dagrpo.config.schema import Params
from dagrpo.data.task import get_task
from dagrpo.engine import may_share_memory
from dagrpo.engine.config import EngineConfig
from dagrpo.pipeline.stages import difficulty, sample, sample_kept, sft, train, validate
from dagrpo.trainer.state.digests import recorded_every
from dagrpo.trainer.state.tensors import state_bytes
from dagrpo_plan.amounts import BYTES, FLOAT32, Lengths, prompts_of, usual_prompt, usual_training_prompt
from dagrpo_plan.machine import Speed
from dagrpo_plan.measured import Measured
from dagrpo_plan.memory import cache_tokens, held_beside
from dagrpo_plan.models import Models, Shape
from dagrpo_plan.training import Training, of_sft, of_train, trains_itself

# Products of narrow layers reach less of the peak: half of the most at this hidden size. Fitted to three published rates on H100s: 40% of
# the peak for Llama 3.1 8B (torchtitan, docs/performance.md), 37% for Qwen3-4B and 24% for Qwen3-0.6B (prime-rl's SFT, BENCHMARKS.md).
HALF_WIDTH = 1170
# Bytes that operations on a logit read and write (trainer/model/head.py): its product, float32, maximum, difference,
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
    each = _between_products(shape, compiled=work.compiled) * work.width / 2
    between = layers * text.num_hidden_layers * each * work.tokens
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


STAGES = (sft, difficulty, train, sample, sample_kept, validate)
SFT, DIFFICULTY, TRAIN, SAMPLE, SAMPLE_KEPT, VALIDATE = (module.STAGE.name for module in STAGES)
SYNC_BYTES = 1e9  # per second, through a file in memory
# Per second, gathered and opened by the server on each process's GPU. Published: 9B in bfloat16 in 3.5 s (verl, issue 7203, 8 H800),
# 30B in 7 s (slime, https://hebiao064.github.io/rl-weight-sync).
BUCKET_BYTES = 5e9
# Bytes for each trained parameter: the gradient's norm and its clipping 12, AdamW 28 (four numbers read, three written).
OPTIMIZER_BYTES = 40
START_SECONDS = 25.0  # of a server of ours, until it answers
LEFT_OUT = (
    "Left out: preparing data, loading and exporting checkpoints, grading, tools, users and programs that a policy waits for, the "
    "vision tower, what processes send to other machines, and waiting for other jobs. Every completion is taken to be as long as it may be."
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


def seconds_of_stages(
    params: Params, models: Models, speed: Speed | None, measured: Measured, longest: int = 0
) -> Iterator[StageSeconds]:
    """Yield the duration of every long stage; without a speed, and of train with another program, only recorded ones.

    longest: tokens of the completion that a step of training waits for; 0: as many as all have.
    """
    stages: dict[str, Callable[[Params, Models, Speed], StageSeconds]] = {SFT: _sft} if params.sft.steps else {}
    stages |= {DIFFICULTY: _difficulty} if params.difficulty.samples else {}
    stages |= {TRAIN: partial(train_seconds, longest=longest), SAMPLE: _sample}
    stages |= {stage: partial(_sample, stage=stage) for stage in (SAMPLE_KEPT, VALIDATE) if _policies(params, stage)}
    for stage, estimate in stages.items():
        recorded = _recorded(stage, params, measured)
        if recorded is not None:
            yield recorded
        elif speed is not None and (stage != TRAIN or trains_itself(params)):
            yield estimate(params, models, speed)


def _recorded(stage: str, params: Params, measured: Measured) -> StageSeconds | None:
    """Return the duration by the record of an earlier run: of train by its steps, which may be more or fewer now."""
    runs, each = _runs(stage, params), measured.stages.get(stage)
    if stage in (DIFFICULTY, SAMPLE, SAMPLE_KEPT, VALIDATE) and each is not None:
        each *= len(_sampled(params, stage)) * _policies(params, stage)  # a record for each
    if stage == TRAIN and measured.steps:
        beside = START_SECONDS if measured.beside_steps is None else measured.beside_steps
        each = params.training.steps * sum(measured.steps.values()) + beside
    if each is None:
        return None
    return StageSeconds(
        stage=stage,
        seconds=runs * each,
        how="measured",
        runs=runs,
        steps={SFT: params.sft.steps, TRAIN: params.training.steps}.get(stage),
        of_a_step=measured.steps if stage == TRAIN else {},
    )


def _runs(stage: str, params: Params) -> int:
    seeds = len(params.experiment.seeds)
    of_base = seeds if params.sft.steps else 1  # without fine-tuning all seeds have the same base policy
    trained = seeds * (2 if params.evaluation.choose else 1)  # with the chosen one
    return {DIFFICULTY: 1, SAMPLE: of_base + trained}.get(stage, seeds)


def _policies(params: Params, stage: str) -> int:
    """Return how many policies each run samples from."""
    evaluation, training = params.evaluation, params.training
    if stage == SAMPLE_KEPT:
        return len(evaluation.steps(training))
    return len(evaluation.candidates(training)) if stage == VALIDATE else 1


def _estimated(stage: str, params: Params, steps: int, parts: Mapping[str, float], rate: float) -> StageSeconds:
    """Return the duration of a stage that trains, from the parts of a step. rate: tokens per second of its update."""
    runs, start = _runs(stage, params), START_SECONDS if stage == TRAIN else 0.0
    return StageSeconds(
        stage=stage,
        seconds=runs * (steps * sum(parts.values()) + start),
        how="estimated",
        runs=runs,
        steps=steps,
        of_a_step=parts,
        tokens_per_second=rate,
    )


def _sft(params: Params, models: Models, speed: Speed) -> StageSeconds:
    training, runtime = of_sft(params, models, gpu=speed.cores is None), params.runtime.sft
    update, tokens = _update(training, params, speed.fine_tuning, speed, mini_batches=1)
    parts = {"update": update, "saving": _saving(training, speed) / runtime.save_every}
    return _estimated(SFT, params, params.sft.steps, parts, tokens / update)


def train_seconds(params: Params, models: Models, speed: Speed, *, longest: int = 0) -> StageSeconds:
    """Estimate GRPO. Saving and digests, which not every step does, count with their share of a step.

    longest: see `seconds_of_stages`. With partial rollouts a step waits for none, while all that it draws run; it samples as many tokens
    as its batch has, or as all that it draws where groups without spread are discarded.
    """
    settings, training = params.training, of_train(params, models, gpu=speed.cores is None)
    dynamic = settings.dynamic_sampling
    drawn = round(dynamic.oversampling * settings.prompts_per_step)
    prompts = settings.prompts_per_step if dynamic.partial_rollouts and not dynamic.wants_spread else drawn
    sampling = sampling_seconds(
        params,
        models,
        speed,
        engine=params.runtime.engine,
        attempts=prompts * settings.samples_per_prompt,
        prompts=prompts,
        prompt=usual_training_prompt(params),
        lengths=Lengths.of_training(params, models.policy.positions),
        held=held_beside(params, training),
        longest=longest,
        running=drawn * settings.samples_per_prompt if dynamic.partial_rollouts else None,
    )
    update, tokens = _update(training, params, speed.update, speed, mini_batches=settings.mini_batches)
    parts = {
        "rollout": _waited_for(sampling, update, params, speed),
        "update": update,
        "weight sync": _sync(training, params, speed),
        "digests": _digests(training, params, speed),
        "saving": _saving(training, speed) / params.runtime.training.save_every,
    }
    return _estimated(TRAIN, params, settings.steps, parts, tokens / update)


def _update(training: Training, params: Params, rate: float, speed: Speed, *, mini_batches: int) -> tuple[float, float]:
    """Return the seconds of a step's update, with prompts of the usual length, and the tokens of its sequences.

    A CPU takes 2 N FLOPs for a token of a forward pass, the head's part of N at trained tokens, and 2 L d s for attention to s tokens
    (trainer/metrics/throughput.py); a backward pass twice as much, once with frozen weights. A shared prompt counts once for its group. For
    a GPU see `update_seconds`. What the processes of a machine send each other is added, as if no computing hid it.
    """
    passes, shape = training.passes, training.shape
    batch, model = passes.batch, shape.arithmetic
    length = min(batch.written + usual_training_prompt(params), batch.longest)
    own = batch.written + (length - batch.written) / batch.samples
    times, ahead = (2 if passes.rank else 3) + passes.checkpointed, passes.reference + passes.looks_ahead
    sequences = batch.share * mini_batches * training.processes
    if speed.cores is not None:
        head = shape.text.vocab_size * shape.text.hidden_size
        forward = 2 * ((model.parameters - head + model.attention * length) * own + head * batch.written)
        return sequences * (times + ahead) * forward / rate, sequences * length
    each = sequences / training.processes
    work = Work(
        tokens=each * own,
        trained=each * batch.written,
        attended=length,
        passes=times,
        ahead=ahead,
        frozen=passes.rank > 0,
        width=BYTES[passes.dtype],
        compiled=training.may_compile,
    )
    seconds = update_seconds(shape, work, speed, rate)
    optimizer = mini_batches * OPTIMIZER_BYTES * training.trained.trained * training.copies / training.processes
    if params.runtime.nodes == 1:
        seconds += training.bytes_on_links(mini_batches, length / batch.longest) / speed.link
    return seconds + optimizer / speed.bandwidth, sequences * length


def _sync(training: Training, params: Params, speed: Speed) -> float:
    """Return the seconds of a weight sync, or of the adapter that is served: on a GPU in buckets, else by a file."""
    engine = params.runtime.engine
    numbers = training.shape.synced_numbers(params.training.lora, params.training.vision)
    processes, size = params.runtime.training.processes, numbers * BYTES[params.rollout.dtype]
    many = engine.gpus > 1 and params.training.staleness > 0  # the first process has copies for all
    if speed.cores is None and may_share_memory(engine, processes) and not many:
        return size / BUCKET_BYTES
    return size * (2 / SYNC_BYTES + 1 / speed.digest)


def _digests(training: Training, params: Params, speed: Speed) -> float:
    """Return the seconds per step of the digests of gradients, once per mini-batch, and weights: on a GPU at its bandwidth."""
    every = recorded_every(training.trained.trained, params.training.digests_every)
    if not every:
        return 0.0
    hashed = (params.training.mini_batches + 1) * training.trained.trained * FLOAT32
    rate = speed.digest if speed.cores is not None else speed.bandwidth * training.processes
    return hashed / rate / every


def _saving(training: Training, speed: Speed) -> float:
    """Return the seconds of writing and hashing a state."""
    return state_bytes(training.trained.trained, training.moments) * (1 / speed.write + 1 / speed.digest)


def sampling_seconds(
    params: Params,
    models: Models,
    speed: Speed,
    *,
    engine: EngineConfig,
    attempts: int,
    prompts: int,
    prompt: int,
    lengths: Lengths,
    held: int = 0,
    longest: int = 0,
    running: int | None = None,
) -> float:
    """Return the seconds of `attempts` completions of the greatest length, or one of `longest` tokens, for `prompts` prompts.

    The slower one of two: computing, 2 N for each token that is sampled or read (a prompt once for all of its attempts), and reading the
    weights, once for each step of decoding. In addition, reading every attempt's keys and values so far. GPUs with tensor parallelism share
    all of it; their communication is not counted. held: bytes of their memory that the trainer has. running: attempts that always run, so
    that none is waited for; None: only these.
    """
    shape, each = models.policy, BYTES[params.rollout.dtype]
    ranks = 1 if speed.cores else engine.ranks
    on_nodes = max(1, engine.nodes // engine.nodes_per_server)
    servers = len(engine.servers) or (1 if speed.cores else engine.replicas) * on_nodes
    whole = lengths.after(prompt)
    room = cache_tokens(shape, engine, params.rollout.dtype, speed.memory, held)
    together = max(min(engine.max_running_requests, attempts if room is None else room // whole), 1)
    attempts, prompts = -(-attempts // servers), -(-prompts // servers)
    if running is None:
        steps = max(attempts / together * lengths.written, longest, lengths.written)
    else:
        steps = attempts / max(min(together, running // servers), 1) * lengths.written
    tokens = attempts * lengths.written
    computing = 2 * shape.arithmetic.parameters * (tokens + prompts * prompt) / speed.sampling
    reading = steps * shape.weights * each / speed.bandwidth
    cache_bytes = (prompt + whole) / 2 * shape.cached_per_token * each
    return (max(computing, reading) + tokens * cache_bytes / speed.cache_bandwidth) / ranks + steps * speed.per_step


def _waited_for(sampling: float, update: float, params: Params, speed: Speed) -> float:
    """Return the seconds that a step waits for sampling: only those beyond the update if both overlap."""
    engine, training = params.runtime.engine, params.runtime.training
    beside = engine.serves_elsewhere or (speed.cores is None and engine.own_gpus)
    if speed.cores is not None:
        threads = training.threads_of_node(params.runtime.nodes) + engine.threads * engine.replicas
        beside = beside or threads <= speed.cores
    return max(sampling - update, 0.0) if params.training.staleness and beside else sampling


def _difficulty(params: Params, models: Models, speed: Speed) -> StageSeconds:
    lengths, samples = Lengths.of_training(params, models.policy.positions), params.difficulty.samples
    tasks = _sampled(params, DIFFICULTY)
    seconds = [_of_split(params, models, speed, task, "train", lengths, samples) for task in tasks]
    known = [each for each in seconds if each is not None]
    total = START_SECONDS + sum(known) if len(known) == len(seconds) else None
    return StageSeconds(stage=DIFFICULTY, seconds=total, how="estimated", runs=1)


def _sample(params: Params, models: Models, speed: Speed, *, stage: str = SAMPLE) -> StageSeconds:
    """Estimate the evaluation: a greedy completion of each problem, samples, and one without the problem's pictures."""
    sampling, seconds = params.evaluation.sampling, list[float | None]()
    split = "validation" if stage == VALIDATE else "test"
    for task in _sampled(params, stage):
        lengths = Lengths.of_evaluation(params, task, models.policy.positions)
        samples = 1 + sampling.samples + (get_task(task).images and sampling.without_pictures and stage != VALIDATE)
        seconds.append(_of_split(params, models, speed, task, split, lengths, samples, sampling.max_problems))
    known, runs = [each for each in seconds if each is not None], _runs(stage, params)
    each = START_SECONDS + _policies(params, stage) * sum(known)  # kept policies of a seed share an engine
    total = runs * each if len(known) == len(seconds) else None
    return StageSeconds(stage=stage, seconds=total, how="estimated", runs=runs)


def _of_split(
    params: Params,
    models: Models,
    speed: Speed,
    task: str,
    split: str,
    lengths: Lengths,
    samples: int,
    most: int | None = None,
) -> float | None:
    """Return the seconds of sampling a split, at most `most` of its problems; None: how many it has is not known."""
    counts = [count for count in (prompts_of(params, task, split), most) if count is not None]
    if not counts:
        return None
    numbers = {"attempts": min(counts) * samples, "prompts": min(counts), "prompt": usual_prompt(params, task, split)}
    engine = params.runtime.engine.on_one_machine
    return sampling_seconds(params, models, speed, engine=engine, lengths=lengths, **numbers)


def _sampled(params: Params, stage: str) -> Sequence[str]:
    """Return the tasks whose problems a stage answers."""
    if stage == DIFFICULTY:
        return params.experiment.train_tasks
    if stage == VALIDATE:
        return params.evaluation.validated(params.experiment, params.data)
    return [task for task in params.experiment.evaluate if params.evaluation.oracles or not get_task(task).oracle]
