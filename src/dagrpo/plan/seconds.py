"""How long the stages take: as long as they have taken here before, or else by their arithmetic."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dagrpo.params.schema import Params
from dagrpo.plan.data import problems_of, usual_prompt
from dagrpo.plan.measured import Measured
from dagrpo.plan.sequences import Lengths
from dagrpo.plan.shape import Shape
from dagrpo.plan.speed import Speed
from dagrpo.plan.training import shares_prompts
from dagrpo.plan.work import Passes, hand_over_seconds, passes_of, sampling_seconds, update_flops
from dagrpo.tasks.registry import get_task

POLICIES = 2  # that are evaluated: base and trained
START_SECONDS = 25.0  # of a server of ours, until it answers
LEFT_OUT = (
    "Left out: preparing data, loading and saving checkpoints, grading, tools, users and programs that a policy waits for, the "
    "vision tower, and waiting for other jobs. Every completion is taken to be as long as it may be."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """The time of one stage, all seeds one after the other."""

    stage: str
    seconds: float | None  # None: not known before the stage prepare has run
    how: Literal["estimated", "measured"]
    runs: int  # how often it runs
    steps: int | None = None  # of one run; None: it has none
    of_a_step: Mapping[str, float] = field(default_factory=dict)  # seconds by part


def seconds_of_stages(params: Params, shape: Shape, speed: Speed | None, measured: Measured) -> list[StageSeconds]:
    """Of every stage that takes long; those that were not measured need a speed."""
    return [stage for stage in _stages(params, shape, speed, measured) if stage is not None]


def _stages(params: Params, shape: Shape, speed: Speed | None, measured: Measured) -> Iterator[StageSeconds | None]:
    seeds = len(params.experiment.seeds)
    if params.sft.steps:
        yield _known("sft", seeds, params.sft.steps, measured) or _if_known(_sft, params, shape, speed)
    if params.difficulty.samples:
        yield _known("difficulty", 1, None, measured) or _if_known(_difficulty, params, shape, speed)
    yield _train_as_before(params, measured) or _if_known(_train, params, shape, speed)
    yield _known("evaluation", seeds * _samplings(params), None, measured) or _if_known(
        _evaluation, params, shape, speed
    )


def _if_known(
    estimated: Callable[[Params, Shape, Speed], StageSeconds], params: Params, shape: Shape, speed: Speed | None
) -> StageSeconds | None:
    return None if speed is None else estimated(params, shape, speed)


def _known(stage: str, runs: int, steps: int | None, measured: Measured) -> StageSeconds | None:
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
    lengths, sft = Lengths.of_training(params, shape.positions), params.sft
    prompt = usual_prompt(params, params.experiment.train, "train")
    length = min(prompt + lengths.written, lengths.whole)
    passes = Passes(forward=int(params.runtime.sft.activation_checkpointing))
    flops = update_flops(shape, sft.batch_size, length, lengths.written, passes, adapter=sft.lora.is_on)
    together = params.runtime.sft.processes if speed.processes_add_up else 1
    step, seeds = flops / speed.fine_tuning / together, len(params.experiment.seeds)
    return StageSeconds(
        stage="sft",
        seconds=seeds * sft.steps * step,
        how="estimated",
        runs=seeds,
        steps=sft.steps,
        of_a_step={"update": step},
    )


def _train(params: Params, shape: Shape, speed: Speed) -> StageSeconds:
    training, lengths = params.training, Lengths.of_training(params, shape.positions)
    prompt = usual_prompt(params, params.experiment.train, "train")
    drawn = training.dynamic_sampling.oversampling * training.prompts_per_step
    samples = training.samples_per_prompt
    sampling = sampling_seconds(
        shape,
        params,
        speed,
        attempts=round(drawn * samples),
        prompts=round(drawn),
        prompt=prompt,
        lengths=lengths,
    )
    sequences, length = training.prompts_per_step * samples, min(prompt + lengths.written, lengths.whole)
    if shares_prompts(params, shape, gpu=speed.is_of_gpu):
        length -= round(
            prompt * (1 - 1 / samples)
        )  # each sample's part of the prompt that is computed once for all of them
    flops = update_flops(shape, sequences, length, lengths.written, passes_of(params), adapter=training.lora.is_on)
    together = params.runtime.training.processes if speed.processes_add_up else 1
    update = flops / speed.update / together
    parts = {
        "rollout": _waited_for(sampling, update, params, speed),
        "update": update,
        "hand over": hand_over_seconds(shape, params),
    }
    seeds = len(params.experiment.seeds)
    return StageSeconds(
        stage="train",
        seconds=seeds * (training.steps * sum(parts.values()) + START_SECONDS),
        how="estimated",
        runs=seeds,
        steps=training.steps,
        of_a_step=parts,
    )


def _waited_for(sampling: float, update: float, params: Params, speed: Speed) -> float:
    """Seconds that a step waits for its batch: where the engine has room of its own, only what sampling takes longer than the update."""
    return max(sampling - update, 0.0) if params.training.staleness and _is_beside(params, speed) else sampling


def _is_beside(params: Params, speed: Speed) -> bool:
    """Whether the engine computes elsewhere than the trainer: on other machines, other GPUs, or cores that the trainer leaves."""
    engine = params.runtime.engine
    if engine.servers or speed.processes_add_up:
        return bool(engine.servers) or engine.own_gpus
    assert speed.cores is not None, "processes on GPUs add up"
    return params.runtime.training.all_threads + engine.threads * engine.replicas <= speed.cores


def _difficulty(params: Params, shape: Shape, speed: Speed) -> StageSeconds:
    train = params.experiment.train
    problems, lengths = problems_of(params, train, "train"), Lengths.of_training(params, shape.positions)
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
    known = [seconds for seconds in each if seconds is not None]
    seconds = sum(known) * POLICIES * len(params.experiment.seeds) if len(known) == len(each) else None
    return StageSeconds(stage="evaluation", seconds=seconds, how="estimated", runs=runs)


def _of_task(params: Params, task: str, shape: Shape, speed: Speed) -> float | None:
    problems, sampling = problems_of(params, task, "test"), params.evaluation.sampling
    if problems is None and sampling.max_problems is None:
        return None
    counts = [count for count in (problems, sampling.max_problems) if count is not None]
    blind = get_task(task).images and sampling.without_pictures
    asked = min(counts)
    return START_SECONDS + sampling_seconds(
        shape,
        params,
        speed,
        attempts=asked * (1 + sampling.samples + blind),
        prompts=asked * (1 + blind),
        prompt=usual_prompt(params, task, "test"),
        lengths=Lengths.of_evaluation(params, task, shape.positions),
    )


def _samplings(params: Params) -> int:
    """How often the stage sample runs for a seed."""
    return POLICIES * len(_evaluated(params))


def _evaluated(params: Params) -> list[str]:
    return [task for task in params.experiment.evaluate if params.evaluation.oracles or not get_task(task).oracle]
