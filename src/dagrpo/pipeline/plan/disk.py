"""Bytes that an experiment takes on disk."""

from collections.abc import Iterator
from functools import partial

from dagrpo.config.schema import Params
from dagrpo.pipeline.plan.amounts import BYTES, Item, memory, size
from dagrpo.pipeline.plan.models import Models
from dagrpo.pipeline.plan.sequences import Lengths, usual_prompt
from dagrpo.pipeline.plan.training import trains_itself
from dagrpo.pipeline.stages import convert, export, model, sft, teacher, train
from dagrpo.rollout.config import KeepRollouts
from dagrpo.rollout.kept_rollouts import is_kept
from dagrpo.trainer.sft import KEPT_STATES
from dagrpo.trainer.state.tensors import KEPT_WHILE_RUNNING, state_bytes

BYTES_OF_A_TOKEN = {"all": 7.0, "rounded": 4.0}  # in a file: id, text and logprobs, compressed; see docs/benchmarks.md
BYTES_OF_A_ROW = 50  # in a file, beside its tokens
ROLLOUTS, STATES, CACHE = "rollouts", "states", "DVC's cache"
REMEDIES = {
    ROLLOUTS: "set runtime.keep_rollouts to rounded, a number of steps, best_and_worst or none",
    STATES: "set runtime.training.keep_states to 0 where there are several seeds, or train an adapter (training.lora.rank)",
}
OTHERWISE = "take fewer experiment.seeds"


def disk_of(params: Params, models: Models) -> tuple[Item, ...]:
    """Return what the experiment takes on disk at its peak, by item.

    Raises UserError for an unknown task, or an adapter that names no layer.
    """
    outputs = (*_checkpoints(params, models), *([_rollouts(params, models)] if trains_itself(params) else []))
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
    tokens = min(lengths.written + usual_prompt(params, params.experiment.train, "train"), lengths.whole)
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


def _states(params: Params, models: Models) -> Iterator[Item]:
    """Yield the states of train while the last seed runs, and those that sft has left."""
    seeds, keep = len(params.experiment.seeds), params.runtime.training.keep_states
    trained, moments = (
        models.policy.trained(params.training.lora, params.training.vision),
        params.training.moments_dtype,
    )
    number = max(keep, KEPT_WHILE_RUNNING) + keep * (seeds - 1)
    how = f"{number} x a weight in float32 and two moments in {moments} of {trained.trained:,} trained parameters"
    yield Item(name=STATES, bytes=number * state_bytes(trained.trained, moments), how=how)
    tuned = models.policy.trained(params.sft.lora, params.sft.vision).trained if params.sft.steps else 0
    how = f"{seeds * KEPT_STATES} at the end of their runs"
    yield Item(
        name=f"states of {sft.STAGE.name}",
        bytes=seeds * KEPT_STATES * state_bytes(tuned, params.sft.moments_dtype),
        how=how,
    )
