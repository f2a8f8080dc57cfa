"""Weight sync: the policy's weights, or its adapter, into the engine.

With training.lora.serving adapter, all weights are sent once, when the engine is opened, and the adapter after each step.
An engine may compute several layers as one, as q_proj, k_proj and v_proj. If only some of them have an adapter, the others get one of
zeros, which adds 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.lora_layers import adapter_tensors, low_rank_updates, matrices_of
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.tensors import NAMED_DTYPES, JointTensors, StateTensors, Tensors, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.engine import AdapterLayers, capabilities_of, engine_of
from dagrpo.engine.interface import Adapter, AdapterForm
from dagrpo.trainer.batches.rollouts import version_of
from dagrpo.trainer.checks.suite import CheckSuite
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling.held_out import is_evaluated
from dagrpo.trainer.sampling.source import RolloutSource, SamplingSource
from dagrpo.utils.distributed import World

_MERGE = "set training.lora.serving to merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Weights and adapter that an engine is opened with, on rank 0."""

    weights: Tensors
    adapter: Adapter | None  # served beside the weights

    @property
    def synced_each_step(self) -> Tensors:
        """Return the tensors that the engine gets at every weight sync."""
        return self.weights if self.adapter is None else self.adapter.tensors

    @property
    def engine_tensors(self) -> Tensors:
        """Return all tensors that the engine holds once it is open."""
        return self.weights if self.adapter is None else JointTensors(self.weights, self.adapter.tensors)


class PolicyWeights:
    """Weights that the engine gets: all of them after each step, or, with training.lora.serving adapter, all weights at the
    opening and the adapter after each step. With training.staleness it gets copies.

    Every rank has one. Rank 0 reads inside `opening` and `reading` while the others run `give_all_parts` and `give_parts`.
    Raises UserError if the engine cannot serve the adapter of this model.
    """

    def __init__(self, model: PreTrainedModel, run: TrainingRun, world: World) -> None:
        lora, dtype = run.training.lora, NAMED_DTYPES[run.rollout.dtype]
        able = capabilities_of(run.runtime.engine).lora if lora.serving == "adapter" else None
        self._form = None if able is None else adapter_form(model, lora, able)
        memory = engine_of(run.runtime.engine).memory
        self._weights = GatheredWeights(
            model, dtype, world, merges=able is None, memory=None if memory is None else memory()
        )
        self._after_steps = self._weights if able is None else GatheredAdapter(model, lora.rank, dtype, world, able)
        self._stale = run.training.staleness > 0
        self._world = world
        self._lends_gpus = run.runtime.lends_gpus

    @contextmanager
    def opening(self) -> Iterator[Opening]:
        """Yield the tensors to open an engine with, on rank 0, while the other ranks run `give_all_parts`."""
        with self.reading() as tensors:
            if self._form is None:
                yield Opening(weights=tensors, adapter=None)
                return
            with self._weights.reading() as weights:
                yield Opening(weights=weights, adapter=Adapter(form=self._form, tensors=tensors))

    def give_all_parts(self) -> None:
        """Contribute this rank's parts, in the order in which `opening` reads on rank 0, while an engine is opened."""
        self.give_parts()
        if self._form is not None:
            self._weights.give_parts()

    @contextmanager
    def reading(self) -> Iterator[Tensors]:
        """Yield the tensors of a weight sync, on rank 0, while the other ranks run `give_parts`."""
        self._return_unused_memory()
        with self._after_steps.reading() as tensors:
            # A copy with staleness: the engine may sample with these weights while the policy is updated.
            yield copy_in_memory(tensors) if self._stale else tensors

    def give_parts(self) -> None:
        """Contribute this rank's parts to a weight sync, on every rank but 0."""
        self._return_unused_memory()
        self._after_steps.give_parts()

    def _return_unused_memory(self) -> None:
        """Return the GPU memory that torch caches, on every rank, before any server comes back to its GPU."""
        if self._lends_gpus:
            self._world.free_cached()


def copy_in_memory(weights: Tensors) -> Tensors:
    """Return a copy in this machine's memory, which no update changes."""
    return StateTensors({name: weights.read(name).detach().to("cpu", copy=True) for name in weights.specs})


def adapter_form(model: PreTrainedModel, lora: Lora, able: AdapterLayers) -> AdapterForm:
    """Return the form of the adapter that an engine allocates memory for. Raises UserError if it cannot serve it for this model."""
    _require_served(model, able)
    targets = {layer.rpartition(".")[2] for layer in _layers(model, able)}
    return AdapterForm(rank=lora.rank, alpha=lora.alpha, target_modules=tuple(sorted(targets)))


def _require_served(model: PreTrainedModel, able: AdapterLayers) -> None:
    config = model.config.get_text_config()
    if is_mixture_of_experts(config):
        raise UserError(
            f"training.lora.serving is adapter, but a {config.model_type} model is a mixture of experts, whose adapters engines hold "
            f"in another form: {_MERGE}."
        )
    there = {name for name, _ in model.named_modules()}
    for weight in low_rank_updates(model):
        layer = weight.removesuffix(".weight")
        if not able.served.fullmatch(layer) or not there.issuperset(_joined_with(layer, able)):
            raise UserError(
                f"training.lora.serving is adapter, but the adapter changes {layer}, which the engine is not known to serve in a "
                f"{model.config.model_type} model: leave it out of training.lora.target_modules, or {_MERGE}."
            )


def _layers(model: PreTrainedModel, able: AdapterLayers) -> list[str]:
    """Return the layers with an adapter, and those that the engine joins with them."""
    adapted = [weight.removesuffix(".weight") for weight in low_rank_updates(model)]
    return sorted({other for layer in adapted for other in _joined_with(layer, able)})


def _joined_with(layer: str, able: AdapterLayers) -> list[str]:
    start, _, last = layer.rpartition(".")
    parts = next((parts for parts in able.joined if last in parts), (last,))
    return [f"{start}.{part}" for part in parts]


@dataclass(frozen=True, slots=True)
class GatheredAdapter:
    """Counterpart of GatheredWeights for adapters: every rank takes part, and rank 0 reads the whole adapter in `dtype` at once."""

    model: PreTrainedModel
    rank: int  # of the adapter, not of a process
    dtype: torch.dtype
    world: World
    able: AdapterLayers  # of the engine

    @contextmanager
    def reading(self) -> Iterator[Tensors]:
        """Yield the current adapter on rank 0, while the other ranks run `give_parts`."""
        assert self.world.is_rank_zero
        trained = adapter_tensors(self.model)
        yield StateTensors(
            {name: tensor.to(self.dtype, copy=True) for name, tensor in (self._zeros() | trained).items()}
        )

    def give_parts(self) -> None:
        """Contribute this rank's parts, on every rank but 0."""
        adapter_tensors(self.model)

    def _zeros(self) -> dict[str, Tensor]:
        matrices: dict[str, Tensor] = {}
        for layer in _layers(self.model, self.able):
            outputs, inputs = self.model.get_submodule(layer).weight.shape
            down, up = matrices_of(layer)
            matrices |= {down: torch.zeros(self.rank, inputs), up: torch.zeros(outputs, self.rank)}
        return matrices


@dataclass(frozen=True, slots=True)
class WeightSync:
    """Sync of the policy's weights into rank 0's engine. Every rank has one and gives its parts."""

    weights: PolicyWeights
    source: RolloutSource
    checks: CheckSuite
    clock: Clock
    training: Training

    def push(self, finished: int) -> None:
        """Load the weights after `finished` steps into the engine, once older ones have sampled their batches.

        The weights after the last step are loaded to answer held-out problems, if that is due. Every rank calls this.
        """
        steps = self.training.steps
        if self.source.wait() and (finished < steps or is_evaluated(self.training, finished)):
            self._load(finished)
        self.clock.lap("weight_sync")
        if finished == steps:
            self.source.evaluate(finished)

    def catch_up(self, finished: int) -> None:
        """Let older weights sample the batches that they owe, then load those after `finished` steps again. Every rank calls this."""
        if self.source.catch_up(finished):
            self._load(finished)

    def _load(self, finished: int) -> None:
        if not isinstance(self.source, SamplingSource):
            self.weights.give_parts()
            return
        with self.weights.reading() as tensors:
            self.source.engine.load(tensors, version_of(finished))
            self.clock.sizes["timing/weight_sync_bytes"] = float(total_bytes(tensors))
            self.checks.after_sync(self.source.engine, tensors, finished)
            self.source.prefetch.remember(finished, tensors)
