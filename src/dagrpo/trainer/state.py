"""The trainer's resumable state: weights, optimizer, finished steps. Not an output, and never a pickle.

One folder per saved step, written under a temporary name and renamed, so that a killed run finds the last whole one.
What a step produced (its rollouts and its metrics) lies beside, one file per step.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from dagrpo.checkpoints.formats.dcp import DcpTensors, write_weights
from dagrpo.distributed import World
from dagrpo.errors import UserError
from dagrpo.files import atomic_folder, read_json, write_json

OPTIMIZER_KEYS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, per parameter
KEPT_STATES = 2
SECONDS_TO_WAIT_FOR_ANOTHER_TRAINER = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A state on disk. Example: Saved(folder=Path(".state/ab12/step_00040"), step=40): 40 steps are finished."""

    folder: Path
    step: int


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


def latest(root: Path) -> Saved | None:
    """The newest whole state under `root`, or None for a fresh start."""
    found = [
        Saved(folder=p, step=int(p.name.removeprefix("step_")))
        for p in root.glob("step_*")
        if (p / "state.json").exists()
    ]
    return max(found, key=lambda saved: saved.step, default=None)


def at(root: Path, step: int) -> Saved:
    """The state after so many finished steps."""
    return Saved(folder=root / f"step_{step:05d}", step=step)


def save(root: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.AdamW, world: World) -> None:
    """Write the state after `step` finished steps, then drop all but the newest two. Every process writes its part."""
    with world.shared_folder(atomic_folder(at(root, step).folder)) as folder:
        write_weights(folder, _tensors(model, optimizer))
        if world.is_rank_zero:
            write_json(folder / "state.json", {"step": step})
    if world.is_rank_zero:
        for old in sorted(root.glob("step_*"))[:-KEPT_STATES]:
            shutil.rmtree(old)


def load(saved: Saved, model: torch.nn.Module, optimizer: torch.optim.AdamW) -> None:
    """Put a saved state into a model and its optimizer; UserError when it belongs to another model.

    The number of processes need not be the one that saved it: each reads what it is to hold.
    """
    if read_json(saved.folder / "state.json") != {"step": saved.step}:
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


def _room_for(key: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros(()) if key == "step" else torch.empty_like(parameter, requires_grad=False)


def _tensors(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Every tensor of the state, to write from and to read into."""
    tensors = {f"weight/{name}": parameter.detach() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        tensors |= {f"{key}/{name}": value for key, value in optimizer.state.get(parameter, {}).items()}
    return tensors
