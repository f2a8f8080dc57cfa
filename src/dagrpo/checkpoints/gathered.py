"""The weights of a model under their names in a checkpoint, gathered one by one from the ranks that hold its parts.

An adapter of the model is merged into them, unless it is left out: into each weight when it is read, so that the model's own stays as
it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dagrpo.checkpoints.adapted import low_rank_updates, whole
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.modules import in_checkpoint_form, own_state
from dagrpo.checkpoints.tensors import StateTensors, Tensors, TensorSpec
from dagrpo.distributed import World
from dagrpo.errors import UserError

_OWNERS_KEPT = 2  # of the weights of experts, two of the model's tensors are read in turns


def is_in_checkpoint_form(model: PreTrainedModel) -> bool:
    """Whether the tensors of a model are those of its checkpoint, under the same names."""
    outlines = _outlines(own_state(model))
    return outlines.keys() == _unchanged(outlines, in_checkpoint_form(model, outlines))


def _outlines(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors without values."""
    return {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in state.items()}


def _unchanged(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """The names of tensors that a conversion left alone."""
    return {name for name, tensor in after.items() if tensor is before.get(name)}


class GatheredWeights:
    """The weights of a model in `dtype`, under their names in a checkpoint. Rank 0 reads them; every rank takes part:

        if world.is_rank_zero:
            with weights.reading() as tensors:  # any order; each tensor is gathered when it is read
                write(tensors)
        else:
            weights.give_parts()  # until rank 0 has read all that it wants

    No rank ever holds more than a few whole tensors. UserError: the model, spread over several ranks, holds its weights
    in a form that cannot be undone tensor by tensor.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, world: World, *, merges: bool = True) -> None:
        """`merges`: whether an adapter of the model is merged into them."""
        self._model = model
        self._dtype = dtype
        self._world = world
        self._state = own_state(model)
        self._updates = low_rank_updates(model) if merges else {}
        self._owners, self._converted, self.specs = self._described()
        self._kept: dict[str, dict[str, Tensor]] = {}

    @contextmanager
    def reading(self) -> Iterator[Tensors]:
        """On rank 0: the weights as they are now, to be read inside the block. The other ranks are in `give_parts`."""
        assert self._world.is_rank_zero
        self._state = own_state(self._model)
        try:
            yield self if self._owners else StateTensors(self._converted_whole())
        finally:
            self._kept.clear()
            self._world.broadcast(None)

    def give_parts(self) -> None:
        """On every other rank: this rank's parts, one tensor after the other, as rank 0 asks for them."""
        assert not self._world.is_rank_zero
        self._state = own_state(self._model)
        while (owner := self._world.broadcast()) is not None:
            self._whole(owner)

    def read(self, name: str) -> Tensor:
        """The whole tensor, on rank 0, inside `reading`."""
        owner = self._owners[name]
        if owner not in self._converted:
            return self._requested(owner)
        if owner not in self._kept:
            while len(self._kept) >= _OWNERS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[owner] = in_checkpoint_form(self._model, {owner: self._requested(owner)})
        return self._kept[owner][name]

    def _converted_whole(self) -> dict[str, Tensor]:
        """All at once, where they cannot be converted one by one."""
        return in_checkpoint_form(self._model, {name: self._whole(name) for name in self._state})

    def _requested(self, owner: str) -> Tensor:
        self._world.broadcast(owner)
        return self._whole(owner)

    def _whole(self, owner: str) -> Tensor:
        update = self._updates.get(owner)
        if update is not None:
            return self._in_type(update.merged(whole(self._state[owner])))
        return whole(self._in_type(self._state[owner].detach()))

    def _described(self) -> tuple[dict[str, str], set[str], dict[str, TensorSpec]]:
        """Which of the model's tensors holds each of the checkpoint's, which of them are converted, and what comes out."""
        outlines = {owner: self._in_type(tensor) for owner, tensor in _outlines(self._state).items()}
        whole = in_checkpoint_form(self._model, outlines)
        converted = outlines.keys() - _unchanged(outlines, whole)
        owners = {name: name for name in outlines.keys() - converted}
        owners |= {n: o for o in converted for n in in_checkpoint_form(self._model, {o: outlines[o]})}
        if owners.keys() != whole.keys():
            if self._world.size > 1:
                raise UserError(
                    f"{type(self._model).__name__} joins tensors of its checkpoint: set runtime.training.processes to 1."
                )
            owners = {}
        return owners, converted, StateTensors(whole).specs

    def _in_type(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor
