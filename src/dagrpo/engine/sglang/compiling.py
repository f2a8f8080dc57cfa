"""Kernels that a starting server compiles, and its time limit."""

import itertools
import os
import re
from contextlib import suppress
from pathlib import Path

import psutil

# ninja drives SGLang's and FlashInfer's builds; Triton calls the others itself. The kernel cuts names after 15 characters.
COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "cc1plus"})
LAUNCHER = "sglang.launch_server"  # an argument of every server's main process
MOST_SECONDS_OF_COMPILATION = 3600.0


def kernels_being_compiled(server: int) -> list[str] | None:
    """Return the modules that this user's SGLang servers, with `server` (a process id) among them, are compiling; None: none.

    Other servers count, as FlashInfer builds under a lock, where a server waits for what another one compiles. The list is empty where
    something is compiled whose name cannot be known.
    """
    compiling = False
    names = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has ended
            if not _is_compiler(process) or not _is_below_a_server(process, server):
                continue
            compiling = True
            if process.name() == "ninja":
                names |= _module_of(process.cmdline(), Path(process.cwd()))
    return sorted(names) if compiling else None


def _is_compiler(process: psutil.Process) -> bool:
    """Return True for a running compiler of this user. The cheapest check comes first, as it runs on all processes."""
    is_own = Path(f"/proc/{process.pid}").stat().st_uid == os.getuid()
    return is_own and process.name() in COMPILERS and process.status() != psutil.STATUS_ZOMBIE


def _is_below_a_server(process: psutil.Process, server: int) -> bool:
    return any(parent.pid == server or LAUNCHER in parent.cmdline() for parent in process.parents())


def _module_of(command: list[str], folder: Path) -> set[str]:
    """Return the module that a call of ninja builds.

    FlashInfer's ninja gets MODULE/build.ninja, SGLang's works in MODULE/build-KEY/.staging-RANDOM.
    """
    named = next((Path(value) for option, value in itertools.pairwise(command) if option == "-f"), None)
    place = named.parent if named is not None and named.is_absolute() else folder
    names = (part for part in reversed(place.parts) if not part.startswith((".staging-", "build-")))
    name = re.sub(r"[^\w.-]", "", next(names, ""))
    return {name} if name else set()


class StartLimit:
    """Time limit in seconds until a server has to be ready, without time for compiling kernels."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._begun = self._last = now
        self.compiled = 0.0  # seconds in which kernels were compiled

    def is_over(self, now: float, *, compiling: bool) -> bool:
        """Count the time since the last call as compilation or not, and return whether the limit has passed."""
        if compiling:
            self.compiled += now - self._last
        self._last = now
        return not compiling and now - self._begun - self.compiled > self._seconds

    @property
    def compiles_too_long(self) -> bool:
        """Return True if kernels have been compiled for so long that a compiler must hang."""
        return self.compiled > MOST_SECONDS_OF_COMPILATION
