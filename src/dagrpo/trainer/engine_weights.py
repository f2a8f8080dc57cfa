"""The policy's weights on their way to its engine: all of them after each step, or all of them once and an adapter after each step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dagrpo.checkpoints.gathered import GatheredWeights
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.tensors import NAMED_DTYPES, JointTensors, StateTensors, Tensors
from dagrpo.distributed import World
from dagrpo.rollout.engine.adapters import Adapter
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.served_adapter import GatheredAdapter, adapter_form


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What an engine is opened with, on rank 0."""

    weights: Tensors
    adapter: Adapter | None  # that it serves beside them

    @property
    def handed(self) -> Tensors:
        """The part that the engine is given anew after each step."""
        return self.weights if self.adapter is None else self.adapter.tensors

    @property
    def held(self) -> Tensors:
        """All that the engine holds once it is open."""
        return self.weights if self.adapter is None else JointTensors(self.weights, self.adapter.tensors)


class EngineWeights:
    """What the engine gets of the policy: all weights after each step, or, with training.lora.serving adapter, all weights when
    it is opened and the adapter after each step. With training.staleness it gets copies.

    Every rank has one. Rank 0 reads inside `opening` and `reading`; meanwhile the others are in `give_all_parts` and `give_parts`.
    UserError: SGLang cannot serve the adapter of this model.
    """

    def __init__(self, model: PreTrainedModel, run: TrainingRun, world: World) -> None:
        lora, dtype = run.training.lora, NAMED_DTYPES[run.rollout.dtype]
        serves = lora.serving == "adapter"
        self._form = adapter_form(model, lora) if serves else None
        self._weights = GatheredWeights(model, dtype, world, merges=not serves)
        self._after_steps = GatheredAdapter(model, lora.rank, dtype, world) if serves else self._weights
        self._stale = run.training.staleness > 0

    @contextmanager
    def opening(self) -> Iterator[Opening]:
        """On rank 0, while an engine is opened. The other ranks are in `give_all_parts`."""
        with self.reading() as handed:
            if self._form is None:
                yield Opening(weights=handed, adapter=None)
                return
            with self._weights.reading() as weights:
                yield Opening(weights=weights, adapter=Adapter(form=self._form, tensors=handed))

    def give_all_parts(self) -> None:
        """On every other rank, while an engine is opened: in the order in which `opening` reads."""
        self._after_steps.give_parts()
        if self._form is not None:
            self._weights.give_parts()

    @contextmanager
    def reading(self) -> Iterator[Tensors]:
        """On rank 0, after a step: what the engine is given. The other ranks are in `give_parts`."""
        with self._after_steps.reading() as tensors:
            yield self._frozen_if_stale(tensors)

    def give_parts(self) -> None:
        """On every other rank, after a step."""
        self._after_steps.give_parts()

    def _frozen_if_stale(self, tensors: Tensors) -> Tensors:
        """With staleness a copy: the engine may sample with these weights after the policy has moved on."""
        return copy_in_memory(tensors) if self._stale else tensors


def copy_in_memory(weights: Tensors) -> Tensors:
    """A copy in this machine's memory, which no update changes."""
    return StateTensors({name: weights.read(name).detach().to("cpu", copy=True) for name in weights.specs})
