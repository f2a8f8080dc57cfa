"""User code that parameters name: part of the stages' identity.

An edit to it runs the stages that use it again. pipeline/identity.py finds imports; nothing here imports or runs code.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_REQUIRE: ContextVar[Callable[[str], object]] = ContextVar("require", default=lambda module: None)


@contextmanager
def only_modules(require: Callable[[str], object]) -> Iterator[None]:
    """Call `require` with each module of an import path before it is imported. It raises UserError for one that may not run."""
    token = _REQUIRE.set(require)
    try:
        yield
    finally:
        _REQUIRE.reset(token)


def require_allowed(module: str) -> None:
    """Raise UserError if parameters that are not one's own name a module that may not be imported."""
    _REQUIRE.get()(module)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCode:
    """Modules, with their imports from their own packages, and single files."""

    modules: tuple[str, ...] = ()  # dotted
    files: tuple[Path, ...] = ()

    @classmethod
    def at(cls, paths: Iterable[str]) -> Self:
        """Return the modules of import paths, such as my_lab.tools:add."""
        return cls(modules=tuple(path.partition(":")[0] for path in paths if path))

    @classmethod
    def of_command(cls, words: Iterable[str]) -> Self:
        """Return the files of this folder that a command names: its scripts, and the files in its arguments."""
        root = Path.cwd()
        # Not Path.is_file, which raises for a word that is too long for a name, or a path without permission.
        files = (root / word for word in words if os.path.isfile(word))
        return cls(files=tuple(file for file in files if file.resolve().is_relative_to(root)))


def no_named_code(config: object) -> NamedCode:
    """Return no code, for a plug-in whose parameters name none."""
    return NamedCode()
