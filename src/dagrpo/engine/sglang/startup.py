"""Wait for a starting server: its phases, compiled kernels, time limit."""

import itertools
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil

from dagrpo.engine.errors import ServerError

if TYPE_CHECKING:
    from dagrpo.engine.sglang.server import SGLangServer

# ninja drives SGLang's and FlashInfer's builds; Triton calls the others itself. The kernel cuts names after 15 characters.
COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "cc1plus"})
LAUNCHER = "sglang.launch_server"  # an argument of every server's main process
MOST_SECONDS_OF_COMPILATION = 3600.0
SECONDS_BETWEEN_CHECKS = 0.1
BYTES_TO_READ = 100_000  # of the log's end
PHASES = {  # what the log says when each begins; all small letters
    "server_args=": "starting its processes",
    "load weight begin": "loading weights",
    "load weight end": "setting up its cache",
    "capture cuda graph": "capturing CUDA graphs",
    "cuda graph begin": "capturing CUDA graphs",
    "application startup complete": "warming up",
    "fired up": "answering",
}


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


def wait_until_ready(server: "SGLangServer", seconds: float, log: Path, tell: Callable[[str], None]) -> None:
    """Wait until a server answers. `tell` gets its phase.

    Raises ServerError if it dies, takes longer than `seconds`, or a compiler hangs.
    """
    limit = StartLimit(seconds, time.monotonic())
    questions = ("/health", "/model_info") if server.answers_requests else ("/health",)
    headers = {"Authorization": f"Bearer {server.endpoint.api_key}"}
    with httpx.Client(base_url=server.endpoint.address, headers=headers, timeout=5.0, trust_env=False) as http:
        while not _is_ready(http, questions):
            failure = server.diagnose()
            if failure is not None:
                raise ServerError(failure)
            kernels = kernels_being_compiled(server.process.pid)
            if limit.is_over(time.monotonic(), compiling=kernels is not None):
                raise ServerError(
                    f"The SGLang server was not ready after {seconds:g} s; it was still {phase_in(log)}: stop other work on this machine, "
                    f"or raise runtime.engine.start_timeout (log: {log})."
                )
            if limit.compiles_too_long:
                names = " ".join(kernels or ["kernels"])
                raise ServerError(
                    f"The SGLang server has waited for {limit.compiled:.0f} s for {names} to be compiled, so that a compiler seems to "
                    "hang: end your processes ninja, nvcc and cicc, then run `dagrpo warm`, with a smaller MAX_JOBS if memory was short "
                    f"(log: {log})."
                )
            server.process.note_shared_memory()
            tell(phase_in(log) if kernels is None else _compilation(kernels, limit.compiled))
            time.sleep(SECONDS_BETWEEN_CHECKS)
        http.post("/freeze_gc")  # emptying the cache collects garbage: 0.4 s otherwise


def _is_ready(http: httpx.Client, questions: Sequence[str]) -> bool:
    """Return True if it answers, and not another server that has taken its port: only ours knows the api key.

    A part of a server that does not answer requests is asked for its sign of life alone, which needs no key.
    """
    try:
        return all(http.get(question).status_code == 200 for question in questions)
    except httpx.HTTPError:
        return False


def _compilation(kernels: Sequence[str], seconds: float) -> str:
    return " ".join(("compiling kernels", *kernels, f"for {seconds:.0f} s; kept for later starts"))


def phase_in(log: Path) -> str:
    """Return the latest phase in the log, in a few words."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - BYTES_TO_READ))
            text = file.read().decode(errors="replace").lower()
    except OSError:  # not there yet
        text = ""
    found = {text.rfind(words): phase for words, phase in PHASES.items()}
    latest = max(found)
    return found[latest] if latest >= 0 else "importing its packages"
