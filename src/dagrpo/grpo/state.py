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
from safetensors.torch import load_file, save_file

from dagrpo.files import atomic_folder, read_json, write_json

KEPT_STATES = 2
SECONDS_TO_WAIT_FOR_ANOTHER_TRAINER = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A state on disk. Example: Saved(folder=Path(".state/ab12/step_00040"), step=40): 40 steps are finished."""

    folder: Path
    step: int


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the state for one trainer; ValueError when another process has it for longer than a minute."""
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / "lock", timeout=SECONDS_TO_WAIT_FOR_ANOTHER_TRAINER):
            yield
    except Timeout:
        raise ValueError(
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


def save(root: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.AdamW) -> None:
    """Write the state after `step` finished steps, then drop all but the newest two."""
    with atomic_folder(root / f"step_{step:05d}") as folder:
        save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, folder / "model.safetensors")
        save_file(_optimizer_tensors(model, optimizer), folder / "optimizer.safetensors")
        write_json(folder / "state.json", {"step": step})
    for old in sorted(root.glob("step_*"))[:-KEPT_STATES]:
        shutil.rmtree(old)


def load(saved: Saved, model: torch.nn.Module, optimizer: torch.optim.AdamW) -> None:
    """Put a saved state into a model and its optimizer; ValueError when it belongs to another model."""
    if read_json(saved.folder / "state.json") != {"step": saved.step}:
        raise ValueError(
            f"{saved.folder} does not hold step {saved.step}: delete {saved.folder.parent} and train from the start."
        )
    weights = load_file(saved.folder / "model.safetensors")
    moments = load_file(saved.folder / "optimizer.safetensors")
    parameters = dict(model.named_parameters())
    if weights.keys() != parameters.keys():
        raise ValueError(
            f"{saved.folder} holds another model's weights: delete {saved.folder.parent} and train from the start."
        )
    for name, parameter in parameters.items():
        parameter.data.copy_(weights[name])
        names = {key: f"{name}/{key}" for key in ("exp_avg", "exp_avg_sq", "step") if f"{name}/{key}" in moments}
        if names:
            optimizer.state[parameter] = {key: moments[full].to(_device(key, parameter)) for key, full in names.items()}


def _device(key: str, parameter: torch.nn.Parameter) -> torch.device:
    return torch.device("cpu") if key == "step" else parameter.device


def _optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
