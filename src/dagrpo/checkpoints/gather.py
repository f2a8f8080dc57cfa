"""Sharded weights gathered one by one, under their names in a checkpoint.

An adapter of the model is merged into each weight when it is read, unless it is left out; the model's weights stay as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from dagrpo.checkpoints.lora_layers import low_rank_updates, whole
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.modules import in_checkpoint_form, own_state
from dagrpo.checkpoints.tensors import StateTensors, Tensors, TensorSpec
from dagrpo.core.errors import UserError
from dagrpo.utils.distributed import World

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


class RankMemory(Protocol):
    """Memory of one rank that the server on its GPU opens."""

    def obstacle(self) -> str | None:
        """Return what keeps a server from opening it; None: nothing."""
        ...

    def hold(self, specs: Mapping[str, TensorSpec], read: Callable[[str], Tensor]) -> str | None:
        """Hold these tensors in place of those before, which the server has closed; return their handle, None without any."""
        ...


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

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        world: World,
        *,
        merges: bool = True,
        memory: RankMemory | None = None,
    ) -> None:
        """Set up gathering. `merges`: merge the model's adapter into the weights. `memory`: this rank's; None: it shares none."""
        self._model = model
        self._dtype = dtype
        self._world = world
        self._memory = memory
        self._acts: dict[str, Callable[..., Any]] = {  # of every rank
            "gather": self._whole,
            "free": self._free,
            "try": self._obstacles,
            "hold": self._handles,
        }
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
            yield (
                self
                if self._owners
                else StateTensors(in_checkpoint_form(self._model, {name: self._whole(name) for name in self._state}))
            )
        finally:
            self._end()
            self._world.broadcast(None)

    def give_parts(self) -> None:
        """Send this rank's parts, on every other rank, one tensor after the other, as rank 0 requests them."""
        assert not self._world.is_rank_zero
        self._state = own_state(self._model)
        while (asked := self._world.broadcast()) is not None:
            act, *given = asked
            self._acts[act](*given)
        self._end()

    @property
    def sharing_ranks(self) -> int:
        """Return the number of ranks on the first machine if they share memory with servers there, else 0."""
        return 0 if self._memory is None else self._world.ranks_here

    def free_cached(self) -> None:
        """Return every rank's cached GPU memory, on rank 0, inside `reading`: a server on one of their GPUs needs it next."""
        self._everywhere("free")

    def obstacle(self, ranks: Iterable[int]) -> str | None:
        """Return what keeps a server from opening the memory of one of these ranks, on rank 0, inside `reading`; None: nothing."""
        return next(filter(None, self._everywhere("try", [*ranks])), None)

    def hold(self, names: Sequence[str], ranks: Iterable[int]) -> list[str | None]:
        """Let these ranks hold the named tensors, and all others none, on rank 0, inside `reading`; return the handles by rank."""
        handles: list[str | None] = self._everywhere("hold", [*names], [*ranks])
        return handles

    def read(self, name: str) -> Tensor:
        """Return the whole tensor, on rank 0, inside `reading`."""
        return self._read(name, lambda owner: self._everywhere("gather", owner))

    def _read(self, name: str, gather: Callable[[str], Tensor]) -> Tensor:
        owner = self._owners[name]
        if owner not in self._converted:
            return gather(owner)
        if owner not in self._kept:
            while len(self._kept) >= _OWNERS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[owner] = in_checkpoint_form(self._model, {owner: gather(owner)})
        return self._kept[owner][name]

    def _everywhere(self, act: str, *given: Any) -> Any:
        """Let every rank act, on rank 0; return this rank's result."""
        self._world.broadcast([act, *given])
        return self._acts[act](*given)

    def _free(self) -> None:
        self._kept.clear()
        self._world.free_cached()

    def _obstacles(self, ranks: Sequence[int]) -> list[str | None]:
        return self._world.gather(self._memory.obstacle() if self._memory and self._world.rank in ranks else None)

    def _handles(self, names: Sequence[str], ranks: Sequence[int]) -> list[str | None]:
        """Hold the named tensors if this is one of the ranks; gather them in any case, which takes all."""
        self._kept.clear()  # on every rank: where one still had an owner of the bucket before, it would miss a collective

        def read(name: str) -> Tensor:
            return self._read(name, self._whole)

        if self._memory is not None and self._world.rank in ranks:
            return self._world.gather(self._memory.hold({name: self.specs[name] for name in names}, read))
        self._end()
        for name in names:
            read(name)
        return self._world.gather(None)

    def _end(self) -> None:
        """Keep nothing of the weights that were read."""
        self._kept.clear()
        if self._memory is not None:
            self._memory.hold({}, self._whole)

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
