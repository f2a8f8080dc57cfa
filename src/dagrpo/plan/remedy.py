"""What would make an experiment fit: the first change of a parameter, or of several, with which the same formulas say so.

On a GPU 16 bits come first: they save time in any case. Then come those that change no result (runtime), and what costs most comes last.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dagrpo.errors import UserError
from dagrpo.params.overlay import merged
from dagrpo.params.schema import Params, parse
from dagrpo.plan.amounts import size
from dagrpo.plan.machine import Machine
from dagrpo.plan.memory import Models, StageMemory, longest_sequence, stages
from dagrpo.rollout.engine.errors import NO_GPU_TO_LEAVE
from dagrpo.trainer.budget import reduction_of

MOST_PROCESSES = 8
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
        changes = [f"{key} to {_as_yaml(value)}" for key, value in self.values.items()]
        return f"set {' and '.join(changes)}, which takes {size(self.total)}"


def fullest(params: Params, models: Models, machine: Machine) -> StageMemory:
    """The stage that takes most of a device."""
    return max(stages(params, models, on_gpu=machine.on_gpu), key=lambda stage: stage.total)


def refusal(params: Params, models: Models, machine: Machine) -> str | None:
    """Why an experiment cannot run or fit, and what to change, in one sentence; None: it may."""
    if params.runtime.engine.release_memory and not machine.on_gpu:
        return NO_GPU_TO_LEAVE
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
    """None: nothing that is tried here is enough."""
    for values in _tried(params, models, machine):
        try:
            changed = parse(_with(params, values))
            total = fullest(changed, models, machine).total
        except UserError:  # does not go with the rest of the parameters
            continue
        if total <= machine.memory:
            return Remedy(values=values, total=total)
    return None


def _tried(params: Params, models: Models, machine: Machine) -> Iterator[Values]:
    halved = _in_16_bits(params) if machine.on_gpu else {}
    if halved:
        yield halved
    rest = _tried_in_these_types(parse(_with(params, halved)), models, machine)
    yield from (halved | values for values in rest)


def _in_16_bits(params: Params) -> Values:
    """Return bfloat16 for all that is computed in float32."""
    types = {"training.dtype": params.training.dtype}
    if params.sft.steps:
        types["sft.dtype"] = params.sft.dtype
    if not params.runtime.engine.servers:
        types["rollout.dtype"] = params.rollout.dtype
    return {key: "bfloat16" for key, dtype in types.items() if dtype == "float32"}


def advice(params: Params, machine: Machine) -> str | None:
    """Return a sentence on what would take much less time on a GPU with known peaks; None: nothing known would."""
    slow = _in_16_bits(params)
    if machine.gpu is None or not slow:
        return None
    factor = machine.gpu.bfloat16 / machine.gpu.float32
    return (
        f"{' and '.join(slow)} {'is' if len(slow) == 1 else 'are'} float32: {machine.gpu.name} has {factor:.3g} times the peak in "
        "bfloat16, which changes results; weights, gradients and AdamW stay in float32."
    )


def _tried_in_these_types(params: Params, models: Models, machine: Machine) -> Iterator[Values]:
    batches, caches = list(_smaller_batches(params)), list(_smaller_caches(params, models))
    together: Values = {}
    for smaller in (batches, caches):
        yield from smaller
        together |= smaller[-1] if smaller else {}
    yield together
    for less in _less_at_a_time(params, on_gpu=machine.on_gpu):
        together = together | less
        yield together
    if machine.on_gpu:
        yield from (together | more for more in _more_processes(params))
    for saving in _savings(params):
        yield saving
        together = together | saving
        yield together
    if machine.on_gpu:
        yield from (together | more for more in _more_processes(params))
    yield from (together | shorter for shorter in _shorter_answers(params))


def _smaller_batches(params: Params) -> Iterator[Values]:
    """What limits a micro-batch of training, halved again and again; then also that of fine-tuning, where it is larger."""
    runtime = params.runtime.training
    key, most = "micro_batch_size", runtime.micro_batch_size
    if runtime.micro_batch_tokens is not None:
        key, most = "micro_batch_tokens", runtime.micro_batch_tokens
    completions = params.training.prompts_per_step * params.training.samples_per_prompt
    value = min(most, completions) if key == "micro_batch_size" else most
    while value > 1:
        value //= 2
        own: Values = {f"runtime.training.{key}": value}
        if key == "micro_batch_size" and params.sft.steps and params.runtime.sft.micro_batch_size > value:
            yield own
            own = own | {"runtime.sft.micro_batch_size": value}
        yield own


def _smaller_caches(params: Params, models: Models) -> Iterator[Values]:
    """The key-value cache, halved again and again, down to the longest sequence."""
    if params.runtime.engine.servers:
        return
    tokens, least = params.runtime.engine.max_total_tokens, max(longest_sequence(params, models), LEAST_CACHE)
    while tokens // 2 >= least:
        tokens //= 2
        yield {"runtime.engine.max_total_tokens": tokens}


def _less_at_a_time(params: Params, *, on_gpu: bool) -> Iterator[Values]:
    """An engine that makes room for updates, gradients added up at once, logits of fewer tokens, layers computed again.

    Each costs time, and gives the same results but for rounding.
    """
    engine = params.runtime.engine
    if on_gpu and not (engine.servers or engine.release_memory or engine.own_gpus):
        yield {"runtime.engine.release_memory": True}
    sections = ["training", "sft"] if params.sft.steps else ["training"]
    runtime = params.runtime.training
    if runtime.processes > 1 and reduction_of(runtime, on_gpu=on_gpu) == "each_mini_batch":
        yield {f"runtime.{section}.reduce_gradients": "each_micro_batch" for section in sections}
    if params.runtime.training.head_chunk_tokens is None:
        yield {f"runtime.{section}.head_chunk_tokens": HEAD_CHUNK for section in sections}
    if not (params.runtime.training.activation_checkpointing or params.runtime.training.share_prompts):
        yield {f"runtime.{section}.activation_checkpointing": True for section in sections}


def _more_processes(params: Params) -> Iterator[Values]:
    processes = params.runtime.training.processes * 2
    while processes <= MOST_PROCESSES:
        more: Values = {"runtime.training.processes": processes}
        yield more
        if params.runtime.training.reduce_gradients == "each_mini_batch":
            yield more | {"runtime.training.reduce_gradients": "each_micro_batch"}
        processes *= 2


def _savings(params: Params) -> Iterator[Values]:
    """What changes results; first what changes them least."""
    yield from ({key: dtype} for key, dtype in _in_16_bits(params).items())
    if params.algorithm.kl.coefficient > 0:
        yield {"algorithm.kl.coefficient": 0.0}
    if not params.training.lora.is_on:
        yield {"training.lora.rank": RANK}


def _shorter_answers(params: Params) -> Iterator[Values]:
    """What the policy may write in training, halved again and again."""
    tokens = params.rollout.max_new_tokens
    while tokens // 2 >= FEWEST_NEW_TOKENS:
        tokens //= 2
        yield {"rollout.max_new_tokens": tokens}


def _as_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with(params: Params, values: Values) -> dict[str, Any]:
    laid = params.model_dump()
    for key, value in values.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        laid = merged(laid, value)
    return laid
