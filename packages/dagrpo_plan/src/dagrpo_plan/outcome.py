"""The plan of an experiment: memory, times, disk, notes, refusal."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dagrpo.config.overlay import merged
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.utils.console import duration, size
from dagrpo.utils.gpu_specs import gpu_named, kind_of
from dagrpo.utils.machine import warning
from dagrpo_plan.amounts import Item, Lengths
from dagrpo_plan.machine import Machine, Speed, machine_for, speed_of
from dagrpo_plan.measured import Measured, measured
from dagrpo_plan.memory import SERVER, SYNC, StageMemory, disk_note, disk_of, stages
from dagrpo_plan.models import Models
from dagrpo_plan.remedy import advice, fits, refusal
from dagrpo_plan.times import LEFT_OUT, StageSeconds, seconds_of_stages, train_seconds
from dagrpo_plan.training import of_train, trains_itself

NETWORK = 50e9  # bytes per second
NEARLY_ALL = 0.9  # of a device's memory: beyond that, what the formulas leave out may not fit
LONGEST_BY_LIKELY = 3  # the longest completion by a likely one: GSM8K has about 300 tokens where 1,024 are allowed
TOGETHER, APART = "on the same GPUs, in turns", "on separate GPUs (own_gpus, staleness 1)"
PARTIAL = "in turns with partial_rollouts"
OVERSAMPLING = 1.5  # of partial rollouts where an experiment has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Content of `dagrpo plan`."""

    experiment: str
    machine: str
    memory: int  # bytes of a device
    parameters: int  # of the policy
    processes: int  # of the trainer on all nodes, each on a separate device if there are GPUs
    stages: tuple[StageMemory, ...]
    times: tuple[StageSeconds, ...]  # with every completion as long as it may be
    likely: float | None  # seconds of stages of known time, with completions of the likely length; None: of none
    longest: float | None  # the same with every completion as long as it may be
    disk: tuple[Item, ...]
    free: int  # bytes of the project's disk
    basis: tuple[str, ...]  # sentences on where the times come from
    ways: dict[str, float]  # seconds of a training step by the way to sample: in turns, ahead, partial rollouts
    notes: tuple[str, ...]  # sentences on what may go otherwise
    refusal: str | None  # why it cannot fit, and what to change; None: it may


def plan_of(params: Params, machine: Machine, *, online: bool = False, answer: int | None = None) -> Plan:
    """Plan an experiment for a machine. `answer`: the likely tokens of a completion; None: a third of the limit.

    Raises UserError if a config is missing, a task is unknown, or an adapter names no layer.
    """
    models = Models.of(params, online=online)
    needed = stages(params, models, on_gpu=machine.on_gpu, memory=machine.memory)
    disk, free = disk_of(params, models), shutil.disk_usage(Path()).free
    earlier = measured(params) if machine.is_here else Measured()
    speed = speed_of(machine, params)
    times = tuple(seconds_of_stages(params, models, speed, earlier))
    longest = Lengths.of_training(params, models.policy.positions).written
    return Plan(
        experiment=params.experiment.name,
        machine=machine.name,
        memory=machine.memory,
        parameters=models.policy.weights,
        processes=params.runtime.training.processes * params.runtime.nodes,
        stages=tuple(needed),
        times=times,
        likely=_all_seconds(seconds_of_stages(_shorter(params, answer), models, speed, earlier, longest)),
        longest=_all_seconds(times),
        disk=disk,
        free=free,
        basis=tuple(_basis(speed, earlier, times)),
        ways=ways_to_sample(params, models, machine, speed, answer),
        notes=(*_notes(params, models, machine, needed), *filter(None, [disk_note(disk, free)])),
        refusal=refusal(params, models, machine),
    )


def minutes_on(params: Params, gpus: Sequence[str]) -> dict[str, float]:
    """Return the longest minutes of one run of each stage on the slowest of these GPUs; {} if one or a model's config is not known here.

    gpus: names, such as h100 or nvidia_h100_80gb_hbm3.
    """
    try:
        kinds = [kind_of(name.replace("_", " ").upper()) or gpu_named(name) for name in gpus]
        machine = machine_for(min(kinds, key=lambda each: each.bfloat16).name, None)
        times = seconds_of_stages(params, Models.of(params), speed_of(machine, params), Measured())
        return {each.stage: each.seconds / each.runs / 60 for each in times if each.seconds is not None}
    except UserError:
        return {}


def ways_to_sample(
    params: Params, models: Models, machine: Machine, speed: Speed | None, answer: int | None = None
) -> dict[str, float]:
    """Return the seconds of a training step by the way to sample on the same number of GPUs; without those that cannot run.

    Completions have the likely length, `answer` or a third of the limit; a step in turns, or a step ahead of the policy, waits for one at
    the limit. Of the ways to divide the GPUs between trainer and servers the fastest that fits counts. {} for several nodes.
    """
    runtime, engine = params.runtime, params.runtime.engine
    number = runtime.training.processes + (engine.gpus if engine.own_gpus else 0)
    known = machine.on_gpu and trains_itself(params)
    if speed is None or not known or runtime.nodes > 1 or engine.serves_elsewhere or engine.tensor_parallel > 1:
        return {}
    dynamic = params.training.dynamic_sampling
    of_partial = {
        "oversampling": max(dynamic.oversampling, OVERSAMPLING),
        "max_aborts": dynamic.max_aborts or 1,
        "partial_rollouts": True,
        "spread_of": dynamic.spread_of if dynamic.is_on else None,
    }
    ways = {
        TOGETHER: [_placed(params, number, number, {})],
        APART: [_placed(params, count, number - count, {"staleness": 1}) for count in range(1, number)],
        PARTIAL: [_placed(params, number, number, {"dynamic_sampling": of_partial})],
    }
    longest = Lengths.of_training(params, models.policy.positions).written
    seconds = {
        name: [
            sum(train_seconds(_shorter(each, answer), models, speed, longest=longest).of_a_step.values())
            for each in some
            if each and fits(each, models, machine)
        ]
        for name, some in ways.items()
    }
    return {name: min(each) for name, each in seconds.items() if each}


def _placed(params: Params, training: int, servers: int, changes: dict[str, Any]) -> Params | None:
    """Return the parameters with that many processes and servers, on the same GPUs if not ahead; None if they do not go together."""
    own_gpus = bool(changes.get("staleness"))
    engine = {"replicas": servers, "own_gpus": own_gpus, "release_memory": not own_gpus}
    sections = {"engine": engine, "training": {"processes": training}, "sft": {"processes": training}}
    in_turns = {"staleness": 0, "dynamic_sampling": {"partial_rollouts": False}}
    try:
        return parse(merged(params.model_dump(), {"runtime": sections, "training": merged(in_turns, changes)}))
    except UserError:
        return None


def _shorter(params: Params, answer: int | None) -> Params:
    """Return the parameters with completions of the likely length as the longest ones."""
    rollout, evaluation = params.rollout, params.evaluation

    def likely(limit: int) -> int:
        return max(min(limit // LONGEST_BY_LIKELY if answer is None else answer, limit), 1)

    sampling = evaluation.sampling.model_copy(update={"max_new_tokens": likely(evaluation.sampling.max_new_tokens)})
    return params.model_copy(
        update={
            "rollout": rollout.model_copy(update={"max_new_tokens": likely(rollout.max_new_tokens)}),
            "evaluation": evaluation.model_copy(update={"sampling": sampling}),
        }
    )


def _all_seconds(times: Iterable[StageSeconds]) -> float | None:
    """Return the sum of those that are known; None if no stage's are."""
    known = [each.seconds for each in times if each.seconds is not None]
    return sum(known) if known else None


def _basis(speed: Speed | None, earlier: Measured, times: tuple[StageSeconds, ...]) -> Iterator[str]:
    if earlier.number:
        yield f"Measured: {earlier.number} training steps that this experiment has taken here."
    elif any(stage.how == "measured" for stage in times):
        yield "Measured: stages that this experiment has run here."
    if speed is None:
        yield "Times are not estimated for a device whose peaks are not known: name one with --gpu."
    elif any(stage.how == "estimated" for stage in times):
        yield f"Estimated: {speed.basis}. {LEFT_OUT}"


def _notes(params: Params, models: Models, machine: Machine, needed: list[StageMemory]) -> Iterator[str]:
    fullest = max(needed, key=lambda stage: stage.total)
    if NEARLY_ALL * machine.memory < fullest.total <= machine.memory:
        yield f"The stage {fullest.stage} takes {fullest.total / machine.memory:.0%} of the memory, and an estimate may be too low."
    if machine.is_here and not machine.on_gpu and fullest.total > (free := psutil.virtual_memory().available):
        yield f"Of the memory {size(free)} are free now."
    if not trains_itself(params):
        yield (
            f"The stage train is run by {params.training.backend.name}: neither its memory nor its time is known here, and the times "
            "above are those of the other stages. Its checkpoints take about the room of the states of train."
        )
    if machine.is_here and not machine.on_gpu:
        types: dict[str, str] = {"training.dtype": params.training.dtype}
        types |= {} if params.runtime.engine.servers else {"rollout.dtype": params.rollout.dtype}
        yield from filter(None, [warning(types | ({"sft.dtype": params.sft.dtype} if params.sft.steps else {}))])
    yield from filter(None, [advice(params, machine)])
    yield from _about_the_network(params, models, machine)
    yield from _about_shared_memory(params, machine, needed)
    yield from _about_the_cache(params, models)
    if models.policy.vision is not None and models.pixels is None:
        yield "How large pictures are is not known before the stage model has run: the vision tower's activations are left out."
    if params.training.dynamic_sampling.max_rounds > 1:
        yield f"A step may sample up to {params.training.dynamic_sampling.max_rounds} rounds; one is reckoned with."
    if params.training.dynamic_sampling.max_aborts and not params.training.dynamic_sampling.partial_rollouts:
        yield "A step is reckoned without training.dynamic_sampling.max_aborts, as if it waited for all that it draws."


def _about_the_network(params: Params, models: Models, machine: Machine) -> Iterator[str]:
    if params.runtime.nodes == 1 or not trains_itself(params):
        return
    count = of_train(params, models, gpu=machine.on_gpu).bytes_between_nodes(params.training.mini_batches)
    yield (
        f"From other nodes each process gets about {size(count)} a step, which is left out above: {duration(count / NETWORK)} at "
        f"{NETWORK / 1e9:.0f} GB/s (400 Gb/s for each GPU), as far as computing does not hide it."
    )


def _about_shared_memory(params: Params, machine: Machine, needed: list[StageMemory]) -> Iterator[str]:
    engine, free = params.runtime.engine, machine.shared_memory
    sync_bytes = sum(each.total for stage in needed for each in (*stage.on_device, *stage.on_host) if each.what == SYNC)
    if engine.serves_elsewhere or engine.weights_folder is not None or free is None or free >= sync_bytes:
        return
    yield (
        f"/dev/shm has {size(free)} free, and the weights on their way to the engine take {size(sync_bytes)}: they would go through "
        "the folder for temporary files, which is slower."
    )


def _about_the_cache(params: Params, models: Models) -> Iterator[str]:
    engine, training = params.runtime.engine, params.training
    if engine.max_total_tokens is None:
        return
    whole = Lengths.of_training(params, models.policy.positions).whole
    trajectories = min(training.prompts_per_step * training.samples_per_prompt, engine.max_running_requests)
    capacity = engine.max_total_tokens // whole
    if not engine.servers and capacity < trajectories:
        yield (
            f"The key-value cache of the {SERVER} holds {capacity:,} attempts of {whole:,} tokens at a time, and up to {trajectories:,} "
            "could run: raise runtime.engine.max_total_tokens where there is memory left."
        )
