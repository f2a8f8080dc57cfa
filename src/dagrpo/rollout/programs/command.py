"""Check that a program's command can be started here.

The check runs when params.yaml is read, so that no work is lost to a typo. process.py runs the command.
"""

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.suggest import nearest_of

KEY = "rollout.agent.command"
LONGEST = 80  # characters of a word that are shown
INTERPRETER = re.compile(r"(python|pypy)[\d.]*|(ba|da|z)?sh|node|perl|ruby|Rscript|julia")
CODE = ("-c", "-m", "-e")  # what follows is code, or a module's name
PATH = re.compile(r"[^\s=]*/[^\s=]*")
SCRIPT = re.compile(r"[^\s=]+\.(py|sh)")


def require_command(command: Sequence[str]) -> None:
    """Raise UserError if there is no such program, or it is an interpreter and there is no such script.

    Arguments of other programs are not checked: a path may be one in a container, or of a file to be written.
    """
    if shutil.which(command[0]) is None:
        raise UserError(
            f"{KEY}: there is no program `{one_line(command[0], LONGEST)}` that can be started: {_nearest(command[0])}install it, "
            "or give its path."
        )
    script = _script(command)
    if script is not None and not os.path.exists(script):
        raise UserError(
            f"{KEY}: there is no file `{one_line(script, LONGEST)}` for {one_line(command[0], LONGEST)} to run: give a path that "
            "counts from the folder in which dagrpo is started."
        )


def _script(command: Sequence[str]) -> str | None:
    """Return the script that an interpreter is to run; None for other programs, or if no word is clearly a path."""
    if not INTERPRETER.fullmatch(os.path.basename(command[0])):
        return None
    for before, argument in pairwise(command):
        if argument in CODE:
            return None
        # What follows an option may be its value, such as a module's name: node -r dotenv/config.
        is_path = SCRIPT.fullmatch(argument) or (PATH.fullmatch(argument) and not before.startswith("-"))
        if is_path and not argument.startswith("-") and "://" not in argument:
            return argument
    return None


def _nearest(name: str) -> str:
    """Return advice on a program of a similar name; "" without one."""
    near = nearest_of(name[:LONGEST], _programs(name[:1]), cutoff=0.7)
    return f"the nearest one is `{near}`; correct it, " if near else ""


def _programs(first: str) -> set[str]:
    """Return the programs on PATH that begin with that letter."""
    names = set()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        with suppress(OSError):  # PATH may name folders that are not there
            names |= {name for name in os.listdir(folder or ".") if name.startswith(first)}
    return {name for name in names if shutil.which(name)}
