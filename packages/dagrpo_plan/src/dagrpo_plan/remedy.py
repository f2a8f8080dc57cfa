"""Remedies: the first of a list of changes with which everything fits.

On a GPU 16 bits come first: they save time in any case. Then come changes that affect no result (runtime), the most costly last. Each
change is added to those before it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dagrpo.config.overlay import with_keys
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.utils.console import size
from dagrpo_plan.machine import Machine
from dagrpo_plan.memory import StageMemory, longest_sequence, stages
from dagrpo_plan.models import Models

TRAINING = "runtime.training"
LEAST_CACHE = 1024  # tokens, as the schema has it
FEWEST_NEW_TOKENS = 128
HEAD_CHUNK = 512  # tokens
RANK = 16  # of an adapter that is proposed
Values = dict[str, Any]  # by dotted key


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Values with which everything fits."""

    values: Mapping[str, Any]  # by dotted key
    total: int  # bytes that the fullest stage then takes

    def __str__(self) -> str:
        changes = [f"{key} to {'true' if value is True else value}" for key, value in self.values.items()]
        return f"set {' and '.join(changes)}, which takes {size(self.total)}"


def fullest(params: Params, models: Models, machine: Machine) -> StageMemory:
    """Return the stage with the most memory on a device."""
    return max(stages(params, models, on_gpu=machine.on_gpu, memory=machine.memory), key=lambda stage: stage.total)


def fits(params: Params, models: Models, machine: Machine) -> bool:
    """Return True if every stage fits into the memory of a device."""
    return fullest(params, models, machine).total <= machine.memory


def refusal(params: Params, models: Models, machine: Machine) -> str | None:
    """Return in one sentence why an experiment cannot run or fit, and what to change; None if it may run."""
    runtime = params.runtime
    for section, engine in (("engine", runtime.engine), ("reward_model", runtime.reward_model)):
        if not machine.on_gpu and not engine.servers and (reason := engine.without_a_gpu):
            return f"runtime.{section}.{reason}."
    stage = fullest(params, models, machine)
    if stage.total <= machine.memory:
        return None
    parts = ", ".join(f"{each.what} {size(each.total)}" for each in stage.on_device)
    need = f"The stage {stage.stage} needs {size(stage.total)} ({parts}), and {machine.name} has {size(machine.memory)}"
    remedy = remedy_for(params, models, machine)
    if remedy is None:
        return f"{need}: no parameter here makes it fit; choose a smaller model, or a device with more memory."
    return f"{need}: {remedy}."


def remedy_for(params: Params, models: Models, machine: Machine) -> Remedy | None:
    """Return the first changes that suffice; None if all of them do not."""
    values: Values = {}
    for change in _changes(params, models, machine):
        try:
            changed = parse(with_keys(params.model_dump(), values | change))
            total = fullest(changed, models, machine).total
        except UserError:  # it does not go with the rest of the parameters
            continue
        values |= change
        if total <= machine.memory:
            return Remedy(values=values, total=total)
    return None


def _in_16_bits(params: Params) -> Values:
    """Return bfloat16 for everything that is computed in float32."""
    types = {"training.dtype": params.training.dtype}
    types |= {"sft.dtype": params.sft.dtype} if params.sft.steps else {}
    types |= {} if params.runtime.engine.servers else {"rollout.dtype": params.rollout.dtype}
    return {key: "bfloat16" for key, dtype in types.items() if dtype == "float32"}


def advice(params: Params, machine: Machine) -> str | None:
    """Return a sentence on a change that saves much time on a GPU with known peaks; None without one."""
    slow = _in_16_bits(params)
    if machine.gpu is None or not slow:
        return None
    factor = machine.gpu.bfloat16 / machine.gpu.float32
    return (
        f"{' and '.join(slow)} {'is' if len(slow) == 1 else 'are'} float32: {machine.gpu.name} has {factor:.3g} times the peak in "
        "bfloat16, which changes results; weights, gradients and AdamW stay in float32."
    )


def _changes(params: Params, models: Models, machine: Machine) -> Iterator[Values]:
    runtime, engine = params.runtime.training, params.runtime.engine
    sections = ["training", "sft"] if params.sft.steps else ["training"]
    if machine.on_gpu and (halved := _in_16_bits(params)):
        yield halved
    yield from _smaller_batches(params)
    if not engine.servers and engine.max_total_tokens is not None:
        shortest = max(longest_sequence(params, models), LEAST_CACHE)
        yield from (
            {"runtime.engine.max_total_tokens": each} for each in _divided(engine.max_total_tokens, 2, shortest)
        )
    if machine.on_gpu and not (engine.serves_elsewhere or engine.release_memory or engine.own_gpus):
        yield {"runtime.engine.release_memory": True}
    if runtime.head_chunk_tokens is None:
        yield {f"runtime.{section}.head_chunk_tokens": HEAD_CHUNK for section in sections}
    if not runtime.activation_checkpointing:
        yield {f"runtime.{section}.activation_checkpointing": True for section in sections}
    if runtime.processes > 1 and runtime.reduce_gradients == "each_mini_batch":
        yield {f"runtime.{section}.reduce_gradients": "each_micro_batch" for section in sections}
    if machine.on_gpu:
        yield from ({f"{TRAINING}.processes": count} for count in (2, 4, 8) if count > runtime.processes)
    if not machine.on_gpu and (halved := _in_16_bits(params)):
        yield halved
    if params.algorithm.kl.coefficient > 0:
        yield {"algorithm.kl.coefficient": 0.0}
    if not params.training.lora.is_on:
        yield {"training.lora.rank": RANK}
    tokens = _divided(params.rollout.max_new_tokens, 2, FEWEST_NEW_TOKENS)
    yield from ({"rollout.max_new_tokens": each} for each in tokens)


def _smaller_batches(params: Params) -> Iterator[Values]:
    """Yield limits of a micro-batch, each a quarter of the one before."""
    runtime, tuned = params.runtime.training, params.runtime.sft.micro_batch_size if params.sft.steps else 0
    if runtime.micro_batch_tokens is not None:
        yield from ({f"{TRAINING}.micro_batch_tokens": value} for value in _divided(runtime.micro_batch_tokens, 4, 1))
        return
    most = params.training.prompts_per_step * params.training.samples_per_prompt
    for value in _divided(min(runtime.micro_batch_size, most), 4, 1):
        own = {f"{TRAINING}.micro_batch_size": value}
        yield own | ({"runtime.sft.micro_batch_size": value} if tuned > value else {})


def _divided(value: int, by: int, least: int) -> Iterator[int]:
    """Yield smaller and smaller values, down to the least."""
    while value > least:
        value = max(value // by, least)
        yield value
