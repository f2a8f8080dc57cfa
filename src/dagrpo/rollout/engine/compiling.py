"""What a starting server compiles, and how long it may take besides."""

import itertools
import re
from contextlib import suppress
from pathlib import Path

import psutil

# ninja drives SGLang's and FlashInfer's builds; Triton calls the others itself. The kernel cuts names after 15 characters.
COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "cc1plus"})


def kernels_being_compiled(server: int) -> list[str] | None:
    """Return the names of the modules that processes below `server`, a process id, are compiling; None: none is at work.

    The list is empty where something is compiled whose name cannot be known.
    """
    compiling = False
    names = set()
    try:
        children = psutil.Process(server).children(recursive=True)
    except psutil.Error:
        return None
    for child in children:
        with suppress(psutil.Error):  # it has ended
            if child.name() not in COMPILERS or child.status() == psutil.STATUS_ZOMBIE:
                continue
            compiling = True
            if child.name() == "ninja":
                names |= _module_of(child.cmdline(), Path(child.cwd()))
    return sorted(names) if compiling else None


def _module_of(command: list[str], folder: Path) -> set[str]:
    """Return the module that a call of ninja builds.

    FlashInfer's ninja is given MODULE/build.ninja, SGLang's works in MODULE/build-KEY/.staging-RANDOM.
    """
    named = next((Path(value) for option, value in itertools.pairwise(command) if option == "-f"), None)
    place = named.parent if named is not None and named.is_absolute() else folder
    names = (part for part in reversed(place.parts) if not part.startswith((".staging-", "build-")))
    name = re.sub(r"[^\w.-]", "", next(names, ""))
    return {name} if name else set()


class StartLimit:
    """The seconds until a server has to be ready, without those in which kernels are compiled."""

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
