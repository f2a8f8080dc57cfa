"""Sharded weights gathered one by one, under their names in a checkpoint.

An adapter of the model is merged into each weight when it is read, unless it is left out; the model's weights stay as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dagrpo.checkpoints.lora_layers import low_rank_updates, whole
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.modules import in_checkpoint_form, own_state
from dagrpo.checkpoints.tensors import StateTensors, Tensors, TensorSpec
from dagrpo.core.errors import UserError
from dagrpo.utils.distributed import World

_FREE = ""  # in place of a tensor's name: every rank returns its cached GPU memory
_OWNERS_KEPT = 2  # of expert weights, two of the model's tensors are read alternately


def is_in_checkpoint_form(model: PreTrainedModel) -> bool:
    """Return True if a model's tensors are those of its checkpoint, under the same names."""
    outlines = _outlines(own_state(model))
    return outlines.keys() == _unchanged(outlines, in_checkpoint_form(model, outlines))


def _outlines(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the meta device, without values."""
    return {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in state.items()}


def _unchanged(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Return the names of tensors that a conversion left alone."""
    return {name for name, tensor in after.items() if tensor is before.get(name)}


class GatheredWeights:
    """A model's weights in `dtype`, under their names in a checkpoint. Rank 0 reads them; every rank takes part:

        if world.is_rank_zero:
            with weights.reading() as tensors:  # any order; each tensor is gathered when it is read
                write(tensors)
        else:
            weights.give_parts()  # until rank 0 leaves the block

    No rank ever holds more than a few whole tensors. Raises UserError if the model, sharded over several ranks, holds its weights
    in a form that cannot be undone tensor by tensor.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, world: World, *, merges: bool = True) -> None:
        """Set up gathering. `merges`: merge the model's adapter into the weights."""
        self._model = model
        self._dtype = dtype
        self._world = world
        self._state = own_state(model)
        self._updates = low_rank_updates(model) if merges else {}
        self._owners, self._converted, self.specs = self._described()
        self._kept: dict[str, dict[str, Tensor]] = {}

    @contextmanager
    def reading(self) -> Iterator[Tensors]:
        """Yield the current weights on rank 0, to be read inside the block, while the other ranks are in `give_parts`."""
        assert self._world.is_rank_zero
        self._state = own_state(self._model)
        try:
            yield self if self._owners else StateTensors(self._converted_whole())
        finally:
            self._kept.clear()
            self._world.broadcast(None)

    def give_parts(self) -> None:
        """Send this rank's parts, on every other rank, one tensor after the other, as rank 0 requests them."""
        assert not self._world.is_rank_zero
        self._state = own_state(self._model)
        while (owner := self._world.broadcast()) is not None:
            if owner == _FREE:
                self._world.free_cached()
            else:
                self._whole(owner)

    def free_cached(self) -> None:
        """Return every rank's cached GPU memory, on rank 0, inside `reading`: a server on one of their GPUs needs it next."""
        self._kept.clear()
        self._world.broadcast(_FREE)
        self._world.free_cached()

    def read(self, name: str) -> Tensor:
        """Return the whole tensor, on rank 0, inside `reading`."""
        owner = self._owners[name]
        if owner not in self._converted:
            return self._requested(owner)
        if owner not in self._kept:
            while len(self._kept) >= _OWNERS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[owner] = in_checkpoint_form(self._model, {owner: self._requested(owner)})
        return self._kept[owner][name]

    def _converted_whole(self) -> dict[str, Tensor]:
        """Convert all weights at once, if they cannot be converted one by one."""
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
        """Return the model's tensor of each checkpoint tensor, the converted ones among them, and the resulting specs."""
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


def free_cached(weights: Tensors) -> None:
    """Return the cached GPU memory of all ranks that hold parts of these weights; of whole ones, this process's."""
    if isinstance(weights, GatheredWeights):
        weights.free_cached()
    else:
        torch.cuda.empty_cache()
