"""Keeper of a run's policies of chosen steps (training.keep_policies).

They lie beside the states until the run has ended. A run resumes from a state of the first step whose policy is missing, or from
one before: keep_policies may have changed, or a file may be damaged.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dagrpo.checkpoints import kept
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, CastTensors, StateTensors, Tensors, TensorSpec
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state import states
from dagrpo.utils.console import say
from dagrpo.utils.distributed import World
from dagrpo.utils.files import atomic_file, remove


class Keeper:
    """Writer of kept policies. Every rank has one and gives its parts; rank 0 writes.

    A whole policy in rollout.dtype goes to a file first, tensor by tensor, and stays until the next one: a delta is the difference
    of two files.
    """

    def __init__(self, run: TrainingRun, model: PreTrainedModel, world: World) -> None:
        """Find the policies that are there."""
        self._run, self._world = run, world
        self._folder, self._steps = run.state / "kept", run.training.kept_steps
        self.precedes_sync = world.size > 1 or run.runtime.lends_gpus
        # In float32 one process copies nothing on its GPU.
        dtype = NAMED_DTYPES[run.rollout.dtype] if self.precedes_sync else torch.float32
        self._weights = GatheredWeights(model, dtype, world) if self._steps else None
        self._there = kept.whole_steps(self._folder) if world.is_rank_zero else []
        self._newest: int | None = None  # the step whose whole policy is in a file

    @property
    def first_missing(self) -> int | None:
        """The first step whose policy is to be kept and is not there, on rank 0."""
        return min({*self._steps}.difference(self._there), default=None)

    def begin(self, finished: int) -> None:
        """Begin after `finished` steps, whose policy is kept now if it is missing; later ones are written again. Every rank calls this."""
        there = [step for step in self._there if step <= finished]
        if self._world.is_rank_zero:
            self._say_if_repeated(finished)
            kept.keep_only(self._folder, there)
        if self._world.broadcast(finished not in there) and finished in self._steps:
            self.gather(finished)
            self.encode(finished)

    def is_due(self, finished: int) -> bool:
        """Return True if the policy after `finished` steps is to be kept; the same in every rank."""
        return finished in self._steps

    def write_output(self, last_step: int) -> None:
        """Write the folder of the policies to keep, on rank 0, of a run that has ended after `last_step` steps."""
        if self._newest is not None:
            remove(self._whole(self._newest))
        chosen = [step for step in self._steps if step <= last_step]
        kept.select(self._folder, self._run.initial, chosen, self._run.kept.parent)

    def gather(self, finished: int) -> None:
        """Write the whole policy after `finished` steps, before it changes. Every rank calls this, if `precedes_sync` between update
        and weight sync: no two threads may let the parts of a model communicate, and servers take the GPUs' memory afterwards.
        """
        assert self._weights is not None
        if self._world.is_rank_zero:
            with self._weights.reading() as tensors, atomic_file(self._whole(finished)) as temporary:
                write_safetensors(temporary, CastTensors(_OnCpu(tensors), NAMED_DTYPES[self._run.rollout.dtype]), {})
        else:
            self._weights.give_parts()
        if self.precedes_sync:
            self._world.free_cached()

    def encode(self, finished: int) -> None:
        """Keep the policy that `gather` has written, on rank 0, in any thread."""
        if not self._world.is_rank_zero:
            return
        before = None if self._newest is None else self._read(self._newest)
        kept.write(self._folder, self._run.initial, finished, self._read(finished), before)
        if self._newest is not None:
            remove(self._whole(self._newest))
        self._newest = finished

    def _say_if_repeated(self, finished: int) -> None:
        reached, missing = states.last_step(self._run.state, self._run.training.steps), self.first_missing
        if missing is not None and missing < reached:
            say(
                f"Step {reached} is finished, but the policy of step {missing} (training.keep_policies) is missing: training again from "
                f"step {finished}. runtime.training.keep_states leaves more states to go on from."
            )

    def _read(self, step: int) -> Tensors:
        file = SafetensorsFile(self._whole(step))
        return StateTensors({name: file.read(name) for name in file.names})  # mapped, not in memory

    def _whole(self, step: int) -> Path:
        return self._folder / f"step_{step:05d}.safetensors"


class _OnCpu:
    """Tensors that are moved off the GPU before anything else is done with them: a server may have the rest of it."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self._tensors.specs

    def read(self, name: str) -> Tensor:
        return self._tensors.read(name).cpu()
