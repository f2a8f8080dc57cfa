"""Hardware presets that `dagrpo use` proposes for this machine's GPUs."""

import sys
from collections.abc import Sequence

import typer

from dagrpo.config.presets import composed, hardware, hardware_in
from dagrpo.core.errors import UserError
from dagrpo.utils.devices import visible_devices

NO_HARDWARE = "none"  # of --hardware: propose nothing


def with_hardware(names: Sequence[str], asked: str | None) -> tuple[list[str], str | None]:
    """Return the presets with one of hardware below them, and a message about it; None if none was added.

    `asked`: a preset of hardware, `none`, or None for one that fits this machine's GPUs, proposed for published models alone.
    Raises UserError if `asked` is not a preset of hardware.
    """
    if asked == NO_HARDWARE:
        return list(names), None
    if asked is not None:
        if asked not in hardware():
            raise UserError(f"--hardware is {asked}: give one of {', '.join(hardware())}, or {NO_HARDWARE}.")
        return [asked, *names], None
    if hardware_in(names) or composed(names).model.source == "fresh":
        return list(names), None
    found = _proposed()
    if found is None:
        return list(names), None
    preset, machine = found
    question = f"This machine has {machine}: lay the preset {preset} under these?"
    if sys.stdin.isatty() and not typer.confirm(question, default=True):
        return list(names), None
    return [preset, *names], (
        f"This machine has {machine}: the preset {preset} lies under everything, with bfloat16 in training; "
        f"--hardware {NO_HARDWARE} leaves it out."
    )


def _proposed() -> tuple[str, str] | None:
    """Return a preset and the GPUs as text, such as `2 x NVIDIA H100 80GB HBM3`; None without a GPU, or without a preset for it."""
    devices = visible_devices()
    if not devices:
        return None
    from dagrpo.pipeline.plan.machine import machine_for

    machine = machine_for(None, None)
    if machine.gpu is None or machine.gpu.hardware is None:
        return None
    known = hardware()
    count = max(size for size in (1, 2, 4, 8) if size <= len(devices))
    preset = machine.gpu.hardware if count == 1 else f"{machine.gpu.hardware}_x{count}"
    return (preset, f"{len(devices)} x {machine.name}") if preset in known else None
