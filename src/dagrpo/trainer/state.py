"""The resumable state of a run: weights, optimizer, finished steps. Not an output, and never a pickle.

One folder per saved step, written under a temporary name and renamed, so that a killed run finds the last whole one. A
state belongs to everything that changes a result; it does not depend on how many steps are asked for, on micro-batches
or on the number of ranks: a run may go on with others of these.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from dagrpo.checkpoints.formats.dcp import DcpTensors, write_weights
from dagrpo.console import say
from dagrpo.distributed import World
from dagrpo.errors import UserError
from dagrpo.files import atomic_folder, read_json, write_json

OPTIMIZER_KEYS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, per parameter
KEPT_WHILE_RUNNING = 2
SECONDS_TO_WAIT_FOR_ANOTHER_TRAINER = 60
_DESCRIPTION = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state on disk. Example: SavedState(folder=Path(".state/ab12/step_00040"), step=40): 40 steps are finished."""

    folder: Path
    step: int

    @property
    def notes(self) -> Any:
        """What was given to `save`."""
        return read_json(self.folder / _DESCRIPTION)["notes"]


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the state for one trainer; UserError when another process has it for longer than a minute."""
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / "lock", timeout=SECONDS_TO_WAIT_FOR_ANOTHER_TRAINER):
            yield
    except Timeout:
        raise UserError(
            f"{root} is in use by another trainer of the same configuration: wait for it, or stop it."
        ) from None


def at(root: Path, step: int) -> SavedState:
    """The state after so many finished steps."""
    return SavedState(folder=root / f"step_{step:05d}", step=step)


def latest(root: Path, at_most: int) -> SavedState | None:
    """The newest whole state after at most so many steps, or None for a fresh start."""
    return max(_saved(root, at_most), key=lambda saved: saved.step, default=None)


def resume(root: Path, steps: int, model: torch.nn.Module, optimizer: torch.optim.AdamW, world: World) -> int:
    """Load the newest state that a run of so many steps can go on from; returns how many are finished, 0 without one.

    Every rank calls this. UserError: the state cannot be used.
    """
    newest = latest(root, steps)
    finished = int(world.broadcast(newest.step if newest is not None else 0))
    if finished:
        load(at(root, finished), model, optimizer)
        if world.is_rank_zero:
            say(f"Step {finished} of {steps} is finished: going on from {at(root, finished).folder}.")
    return finished


def save(
    root: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.AdamW, world: World, notes: Any = None
) -> None:
    """Write the state after `step` finished steps; of those up to it, the newest two stay. Every rank writes its part.

    `notes`, of rank 0 and as JSON can say it, are for whoever goes on from it.
    """
    with world.shared_folder(atomic_folder(at(root, step).folder)) as folder:
        write_weights(folder, _tensors(model, optimizer))
        if world.is_rank_zero:
            write_json(folder / _DESCRIPTION, {"step": step, "notes": notes})
    if world.is_rank_zero:
        prune(root, step, KEPT_WHILE_RUNNING)


def prune(root: Path, step: int, keep: int) -> None:
    """Remove all states up to `step` but the newest `keep`. Later ones belong to a longer run of the same, and stay."""
    oldest_first = sorted(_saved(root, step), key=lambda saved: saved.step)
    for saved in oldest_first[: max(len(oldest_first) - keep, 0)]:
        shutil.rmtree(saved.folder)


def load(saved: SavedState, model: torch.nn.Module, optimizer: torch.optim.AdamW) -> None:
    """Put a saved state into a model and its optimizer; UserError when it belongs to another model.

    The number of ranks need not be the one that saved it: each reads what it is to hold.
    """
    if read_json(saved.folder / _DESCRIPTION).get("step") != saved.step:
        raise UserError(
            f"{saved.folder} does not hold step {saved.step}: delete {saved.folder.parent} and train from the start."
        )
    stored = DcpTensors(saved.folder)
    names = {name.removeprefix("weight/") for name in stored.specs if name.startswith("weight/")}
    if names != dict(model.named_parameters()).keys():
        raise UserError(
            f"{saved.folder} holds another model's weights: delete {saved.folder.parent} and train from the start."
        )
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            key: _room_for(key, parameter) for key in OPTIMIZER_KEYS if f"{key}/{name}" in stored.specs
        }
    stored.read_into(_tensors(model, optimizer))


def _saved(root: Path, at_most: int) -> list[SavedState]:
    steps = [int(p.name.removeprefix("step_")) for p in root.glob("step_*") if (p / _DESCRIPTION).exists()]
    return [at(root, step) for step in steps if step <= at_most]


def _room_for(key: str, parameter: torch.nn.Parameter) -> Tensor:
    return torch.zeros(()) if key == "step" else torch.empty_like(parameter, requires_grad=False)


def _tensors(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Every tensor of the state, to write from and to read into."""
    tensors = {f"weight/{name}": parameter.detach() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        tensors |= {f"{key}/{name}": value for key, value in optimizer.state.get(parameter, {}).items()}
    return tensors
