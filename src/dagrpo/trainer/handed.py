"""What a run hands over to its engine: all weights after each step, or all weights once and an adapter after each step.

Every rank has one: rank 0 reads, the others give their parts.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from dagrpo.checkpoints.gathered import GatheredWeights
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.tensors import NAMED_DTYPES, JointTensors, Tensors
from dagrpo.distributed import World
from dagrpo.rollout.engine.adapters import Adapter, AdapterForm
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.served_adapter import GatheredAdapter, adapter_form


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What an engine is opened with, on rank 0."""

    handed: Tensors  # what it is given anew after each step
    base: Tensors | None  # the weights that stay in it; None: `handed` is all weights, and not an adapter
    form: AdapterForm | None  # of that adapter

    def weights(self, given: Tensors) -> Tensors:
        """What it starts with; `given` is `handed`, or a copy of it."""
        return given if self.base is None else self.base

    def adapter(self, given: Tensors) -> Adapter | None:
        """What it serves beside them."""
        return None if self.form is None else Adapter(form=self.form, tensors=given)

    def all(self, given: Tensors) -> Tensors:
        """All that it then holds."""
        return given if self.base is None else JointTensors(self.base, given)


class Handed:
    """All weights or the adapter, whichever training.lora.serving asks for. UserError: SGLang cannot serve the adapter of this model."""

    def __init__(self, model: PreTrainedModel, run: TrainingRun, world: World) -> None:
        lora, dtype = run.training.lora, NAMED_DTYPES[run.rollout.dtype]
        serves = lora.serving == "adapter"
        self._form = adapter_form(model, lora) if serves else None
        self._weights = GatheredWeights(model, dtype, world, merges=not serves)
        self._after_steps = GatheredAdapter(model, lora.rank, dtype, world) if serves else self._weights

    @contextmanager
    def opening(self) -> Iterator[Opening]:
        """On rank 0, while an engine is opened. The other ranks are in `give_parts_of_all`."""
        with self._after_steps.reading() as handed:
            if self._form is None:
                yield Opening(handed=handed, base=None, form=None)
                return
            with self._weights.reading() as base:
                yield Opening(handed=handed, base=base, form=self._form)

    def give_parts_of_all(self) -> None:
        """On every other rank, while an engine is opened."""
        self._after_steps.give_parts()
        if self._form is not None:
            self._weights.give_parts()

    def reading(self) -> AbstractContextManager[Tensors]:
        """On rank 0, after a step: what the engine is given. The other ranks are in `give_parts`."""
        return self._after_steps.reading()

    def give_parts(self) -> None:
        """On every other rank, after a step."""
        self._after_steps.give_parts()
