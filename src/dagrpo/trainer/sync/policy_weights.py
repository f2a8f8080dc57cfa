"""Weights, or adapter, of the policy for the engine.

With training.lora.serving adapter, all weights are sent once, when the engine is opened, and the adapter after each step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.tensors import NAMED_DTYPES, JointTensors, StateTensors, Tensors
from dagrpo.engine import capabilities_of, engine_of
from dagrpo.engine.interface import Adapter
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sync.lora_export import GatheredAdapter, adapter_form
from dagrpo.utils.distributed import World


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
        self._shares_gpus = run.runtime.engine.release_memory or run.runtime.reward_model.release_memory

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
            yield self._frozen_if_stale(tensors)

    def give_parts(self) -> None:
        """Contribute this rank's parts to a weight sync, on every rank but 0."""
        self._return_unused_memory()
        self._after_steps.give_parts()

    def _return_unused_memory(self) -> None:
        """Return the GPU memory that torch caches, on every rank, before any server comes back to its GPU."""
        if self._shares_gpus:
            self._world.free_cached()

    def _frozen_if_stale(self, tensors: Tensors) -> Tensors:
        """Return a copy if staleness is on: the engine may sample with these weights while the policy is updated."""
        return copy_in_memory(tensors) if self._stale else tensors


def copy_in_memory(weights: Tensors) -> Tensors:
    """Return a copy in this machine's memory, which no update changes."""
    return StateTensors({name: weights.read(name).detach().to("cpu", copy=True) for name in weights.specs})
