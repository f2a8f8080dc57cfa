"""Command `dagrpo use`: params.yaml from presets, without losing manual edits.

A file counts as edited unless it is this command's last output, or an experiment of presets/, with which a fresh clone begins. For
published models a hardware preset that fits this machine's GPUs is proposed.
"""

import os
import re
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dagrpo.cli.shared import PARAMS, complete_hardware, complete_presets
from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import changes
from dagrpo.config.presets import composed, experiments, hardware, hardware_in, name_no_task, preset_text
from dagrpo.config.project import require_own_code
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.file import keep_current
from dagrpo.pipeline.planner import planner
from dagrpo.pipeline.record import STATES
from dagrpo.pipeline.validation import require_fitting_tasks
from dagrpo.utils.console import plain_console
from dagrpo.utils.devices import visible_devices
from dagrpo.utils.files import atomic_file, write_text
from dagrpo.utils.yaml_text import read_yaml

MOST_CHANGES = 200  # changes
DIGEST = STATES / "params.sha256"  # of the params.yaml that this command wrote last
COMMENT = re.compile(rb'(?m)(^ *| +)#[^"\n]*$')  # comments name the plug-ins, of which there may be a new one
NO_HARDWARE = "none"  # of --hardware: propose nothing


def use(
    presets: Annotated[
        list[str],
        typer.Argument(
            help="names of presets, such as qwen3_4b dapo_math gspo h200; or a file", autocompletion=complete_presets
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="replace an edited params.yaml without asking")] = False,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            help="hardware preset to apply first, or `none`; by default the one of this machine's GPU",
            autocompletion=complete_hardware,
        ),
    ] = None,
) -> None:
    """Write params.yaml from presets, each applied over the previous one, and show what changes."""
    require_own_code()
    names, message = _with_hardware(presets, hardware)
    if message is not None:
        plain_console().print(message)
    params = composed(names)
    require_fitting_tasks(params)
    if name_no_task(names):
        plain_console().print(
            f"No task is named, so it is the default one, {params.experiment.train}: name another, such as gsm8k, beside these."
        )
    old, new = PARAMS.read_bytes() if PARAMS.exists() else None, params_yaml(params).encode()
    if old is not None:
        _show_what_changes(params)
        is_ours = DIGEST.is_file() and DIGEST.read_bytes() == sha256(old).hexdigest().encode()
        if old != new and not is_ours and not _is_preset(old):
            _require_consent(force=force)
            plain_console().print(f"The edited one is kept as {_keep_copy(old)}.")
    write_text(PARAMS, new.decode())
    write_text(DIGEST, sha256(new).hexdigest())
    keep_current(params, overridden=False)
    plain_console().print(f"{PARAMS} is now {' + '.join(names)}. dvc.yaml follows it: commit both together.")


def _show_what_changes(new: Params) -> None:
    try:
        old = read_yaml(PARAMS)
    except UserError as error:
        plain_console().print(f"What changes cannot be shown: {error}")
        return
    parameters = changes(old, new)
    for change in parameters[:MOST_CHANGES]:
        plain_console().print(Text.assemble(f"{change.key}: ", (change.old, "red"), " -> ", (change.new, "green")))
    if len(parameters) > MOST_CHANGES:
        plain_console().print(f"... and {len(parameters) - MOST_CHANGES:,} more.")


def _is_preset(text: bytes) -> bool:
    """Return True if params.yaml, with this text, is an experiment of presets/ but for its comments."""
    try:
        match read_yaml(PARAMS):
            case {"experiment": {"name": str(name)}} if name in experiments():
                return COMMENT.sub(b"", preset_text([name]).encode()) == COMMENT.sub(b"", text)
    except UserError:  # one of the two is broken
        pass
    return False


def _require_consent(*, force: bool) -> None:
    if force:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{PARAMS} was edited since `dagrpo use` wrote it: add --force to replace it; the edited one is kept beside it."
        )
    if not typer.confirm(f"{PARAMS} was edited since `dagrpo use` wrote it. Replace it?"):
        plain_console().print(f"{PARAMS} stays as it is.")
        raise typer.Exit(1)


def _keep_copy(text: bytes) -> Path:
    """Write the edited file to an unused path beside params.yaml, and return the path."""
    number = 1
    while os.path.lexists(path := Path(f"{PARAMS}.old{number}")) and not (path.is_file() and path.read_bytes() == text):
        number += 1
    with atomic_file(path) as temporary:
        temporary.write_bytes(text)
    return path


def _with_hardware(names: Sequence[str], preset: str | None) -> tuple[list[str], str | None]:
    """Return the presets with one of hardware before them, and a message about it; None if none was added.

    preset: a preset of hardware, `none`, or None for one that fits this machine's GPUs, proposed for published models alone. Raises
    UserError if it is not a preset of hardware.
    """
    if preset == NO_HARDWARE:
        return list(names), None
    if preset is not None:
        if preset not in hardware():
            raise UserError(f"--hardware is {preset}: give one of {', '.join(hardware())}, or {NO_HARDWARE}.")
        return [preset, *names], None
    if hardware_in(names) or composed(names).model.source == "fresh":
        return list(names), None
    proposal = _proposed()
    if proposal is None:
        return list(names), None
    preset, machine = proposal
    question = f"This machine has {machine}: lay the preset {preset} under these?"
    if sys.stdin.isatty() and not typer.confirm(question, default=True):
        return list(names), None
    return [preset, *names], (
        f"This machine has {machine}: the preset {preset} lies under everything, with bfloat16 in training; "
        f"--hardware {NO_HARDWARE} leaves it out."
    )


def _proposed() -> tuple[str, str] | None:
    """Return a preset, and the GPUs as text, such as `2 x NVIDIA H100 80GB HBM3`; None without a GPU or a preset for it."""
    devices = visible_devices()
    if not devices:
        return None
    plans = planner()
    here = None if plans is None else plans.gpu_here()
    if here is None:
        return None
    kind, name = here
    count = max(size for size in (1, 2, 4, 8) if size <= len(devices))
    preset = kind if count == 1 else f"{kind}_x{count}"
    return (preset, f"{len(devices)} x {name}") if preset in hardware() else None
