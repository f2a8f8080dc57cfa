"""Save a model and its optimizer as a state, and load them."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dagrpo.checkpoints.formats.dcp import DcpTensors, write_weights
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.core.errors import UserError
from dagrpo.trainer.config.sft import MomentsDtype
from dagrpo.trainer.model.policy import WEIGHTS
from dagrpo.trainer.state.states import DESCRIPTION, Recorded, SavedState, at, latest, nothing_recorded, prune
from dagrpo.utils.checksummed_json import write_checksummed
from dagrpo.utils.console import say
from dagrpo.utils.distributed import World
from dagrpo.utils.files import atomic_folder
from dagrpo.utils.manifest import FileEntry

OPTIMIZER_KEYS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, per parameter
KEPT_WHILE_RUNNING = 2  # of a run at a time, the one that is being written included
Beside = Callable[[Path], dict[str, FileEntry]]


def resume(
    root: Path,
    steps: int,
    model: torch.nn.Module,
    optimizer: torch.optim.AdamW,
    world: World,
    recorded: Recorded = nothing_recorded,
    base: str | None = None,
    at_most: int | None = None,
) -> int:
    """Load the newest intact state that a run of `steps` steps can resume from; return its finished steps, 0 without a state.

    Every rank calls this; `recorded` as in `states.latest`. `at_most`: the latest step to resume from, of rank 0. Raises
    UserError if the state is of another model.
    """
    newest = latest(root, min(steps, at_most or steps), recorded) if world.is_rank_zero else None
    finished = int(world.broadcast(newest.step if newest is not None else 0))
    if finished:
        load(at(root, finished), model, optimizer, base)
        if world.is_rank_zero:
            say(f"Step {finished} of {steps} is finished: going on from {at(root, finished).folder}.")
    return finished


def save(
    root: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.AdamW,
    world: World,
    notes: Any = None,
    keep: int = KEPT_WHILE_RUNNING,
    base: str | None = None,
    beside: Beside = lambda folder: {},
    begin: Callable[[Callable[[], None]], None] = lambda write: write(),
) -> None:
    """Write the state after `step` finished steps; of those up to it, keep the newest `keep`. Every rank writes its part.

    `notes`, of rank 0 and JSON-serialisable, are for a resumed run. `base`: the tensor digest of the checkpoint
    that the run began with. `beside(folder)`, on rank 0, writes more files below the state's folder, and lists them.
    `begin` calls the function that writes, in any thread: the tensors are named now, and read while it runs.
    """
    state = _tensors(model, optimizer)

    def write() -> None:
        if world.is_rank_zero:
            prune(root, step - 1, max(keep, KEPT_WHILE_RUNNING) - 1)  # first, so that the disk never holds one more
        with world.shared_folder(atomic_folder(at(root, step).folder)) as folder:
            files = write_weights(folder, state, world.patient)
            if world.is_rank_zero:
                entries = {name: asdict(entry) for name, entry in (files | beside(folder)).items()}
                write_checksummed(folder / DESCRIPTION, {"step": step, "base": base, "notes": notes, "files": entries})

    begin(write)


def state_bytes(trained: int, moments: MomentsDtype) -> int:
    """Return the bytes of a state of `trained` parameters on the disk, all ranks together: weights in float32, and two moments.

    Without what does not grow with the model: headers, a number for each tensor, and batches that were sampled ahead.
    """
    return trained * (WEIGHTS.itemsize + 2 * NAMED_DTYPES[moments].itemsize)


def load(saved: SavedState, model: torch.nn.Module, optimizer: torch.optim.AdamW, base: str | None = None) -> None:
    """Load a saved state into a model and its optimizer. Raises UserError if it belongs to another model or base checkpoint.

    The number of ranks may differ from the one that saved it: each rank reads its part.
    """
    stored = DcpTensors(saved.folder)
    names = {name.removeprefix("weight/") for name in stored.specs if name.startswith("weight/")}
    trained, every = _trained(model), dict(model.named_parameters())
    if names not in (trained.keys(), every.keys()):
        raise UserError(
            f"{saved.folder} holds another model's weights: delete {saved.folder.parent} and train from the start."
        )
    if names != every.keys() and saved.base != base:
        raise UserError(
            f"{saved.folder} holds what was trained beside the weights of another checkpoint than this run begins with: name a "
            "state of this run, or train from the start."
        )
    for name, parameter in trained.items():
        optimizer.state[parameter] = {
            key: _room_for(key, stored.specs[f"{key}/{name}"].dtype, parameter, optimizer)
            for key in OPTIMIZER_KEYS
            if f"{key}/{name}" in stored.specs
        }
    stored.read_into(_tensors(model, optimizer))


def _room_for(key: str, dtype: torch.dtype, parameter: torch.nn.Parameter, optimizer: torch.optim.AdamW) -> Tensor:
    if key != "step":
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    # A fused step counts on the device of the parameter, any other on the CPU.
    return torch.zeros((), device=parameter.device if optimizer.defaults["fused"] else None)


def _tensors(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    trained = _trained(model)
    tensors = {f"weight/{name}": parameter.detach() for name, parameter in trained.items()}
    for name, parameter in trained.items():
        tensors |= {f"{key}/{name}": value for key, value in optimizer.state.get(parameter, {}).items()}
    return tensors


def _trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
