"""Code of the user's own that parameters name: an edit to it runs the stages that use it again.

Not here: finding what a module imports (execution/identity.py), and importing or running any of it.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCode:
    """Modules, with what they import of their own packages, and files, alone."""

    modules: tuple[str, ...] = ()  # dotted
    files: tuple[Path, ...] = ()

    @classmethod
    def at(cls, paths: Iterable[str]) -> Self:
        """The modules of import paths, such as my_lab.tools:add."""
        return cls(modules=tuple(module for path in paths if (module := path.partition(":")[0])))

    @classmethod
    def of_command(cls, words: Iterable[str]) -> Self:
        """The files of this folder that a command names: its scripts, and what they are told to read."""
        root = Path.cwd()
        # Not Path.is_file, which raises over a word that is too long for a name, or leads where nobody may look.
        files = (root / word for word in words if os.path.isfile(word))
        return cls(files=tuple(file for file in files if file.resolve().is_relative_to(root)))


def no_named_code(config: object) -> NamedCode:
    """That of a plug-in whose parameters name none."""
    return NamedCode()
