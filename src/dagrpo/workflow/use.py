"""`dagrpo use`: params.yaml from presets, never at the cost of what somebody wrote there by hand.

A file is taken for edited unless it is byte for byte what this command wrote last, or what an experiment of presets/
says, which is how a fresh clone begins.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.text import Text

from dagrpo.console import VisibleConsole
from dagrpo.errors import UserError
from dagrpo.execution.record import STATES
from dagrpo.files import atomic_file, read_text, write_text
from dagrpo.params.documents import params_yaml
from dagrpo.params.overlay import Change, changes
from dagrpo.params.presets import composed, experiments, preset_text
from dagrpo.params.schema import Params
from dagrpo.params.yaml_text import read_yaml
from dagrpo.workflow.dvc_file import keep_current
from dagrpo.workflow.forms import require_fitting_tasks
from dagrpo.workflow.hardware import with_hardware

PARAMS = Path("params.yaml")
MOST_SHOWN = 200  # changes
WRITTEN = STATES / "params.sha256"  # of the params.yaml that this command wrote last


def use(names: Sequence[str], *, force: bool, hardware: str | None = None) -> None:
    """Write params.yaml, and dvc.yaml's lists of code, for presets; show every parameter that changes.

    Where no preset of hardware is named, the one of this machine's GPUs is laid under the others, or `hardware`; `none`: no one is.
    A params.yaml that was edited is kept beside the new one, and replaced only when the user agrees or `force` says so.
    UserError: a preset is unknown, or there is nobody to ask. typer.Exit: the user does not agree.
    """
    names, told = with_hardware(names, hardware)
    if told is not None:
        _say(told)
    params = composed(names)
    require_fitting_tasks(params)
    old, new = _present(), params_yaml(params).encode()
    if old is not None:
        _show_what_changes(params)
        if old != new and _is_edited(old):
            _require_consent(force=force)
            _say(f"The edited one is kept as {_kept(old)}.")
    write_text(PARAMS, new.decode())
    write_text(WRITTEN, _digest(new))
    keep_current(params, overridden=False)
    _say(f"{PARAMS} is now {' + '.join(names)}.")


def _present() -> bytes | None:
    try:
        return PARAMS.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"{PARAMS} cannot be read ({error.strerror}): move it away, then run `dagrpo use` again."
        ) from None


def _show_what_changes(new: Params) -> None:
    """A line per parameter; a file that cannot be read has none to compare."""
    try:
        old = read_yaml(PARAMS)
    except UserError as error:
        _say(f"What changes cannot be shown: {error}")
        return
    found = changes(old, new)
    for change in found[:MOST_SHOWN]:
        _console().print(_line(change))
    if len(found) > MOST_SHOWN:
        _say(f"... and {len(found) - MOST_SHOWN:,} more.")


def _line(change: Change) -> Text:
    return Text.assemble(f"{change.key}: ", (change.old, "red"), " -> ", (change.new, "green"))


def _is_edited(text: bytes) -> bool:
    return not _wrote(text) and not any(_says(name, text) for name in experiments())


def _wrote(text: bytes) -> bool:
    """Whether this command wrote it last."""
    try:
        return read_text(WRITTEN, "") == _digest(text)
    except UserError:  # there is none, or it is damaged
        return False


def _says(preset: str, text: bytes) -> bool:
    try:
        return preset_text([preset]).encode() == text
    except UserError:  # a preset under repair, of which nobody has asked
        return False


def _require_consent(*, force: bool) -> None:
    if force:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{PARAMS} was edited since `dagrpo use` wrote it: add --force to replace it; the edited one is kept beside it."
        )
    if not typer.confirm(f"{PARAMS} was edited since `dagrpo use` wrote it. Replace it?"):
        _say(f"{PARAMS} stays as it is.")
        raise typer.Exit(1)


def _kept(text: bytes) -> Path:
    """Where the edited file is kept: under a name that nothing has yet."""
    number = 1
    while os.path.lexists(path := Path(f"{PARAMS}.old{number}")) and not _holds(path, text):
        number += 1
    with atomic_file(path) as temporary:
        temporary.write_bytes(text)
    return path


def _holds(path: Path, text: bytes) -> bool:
    try:
        return path.read_bytes() == text
    except OSError:  # something else has the name, or it cannot be read
        return False


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _say(text: str) -> None:
    _console().print(text, markup=False)


def _console() -> VisibleConsole:
    return VisibleConsole(highlight=False, soft_wrap=True)  # made anew: to wherever stdout leads now
