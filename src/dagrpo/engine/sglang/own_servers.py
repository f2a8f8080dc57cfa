"""Start a stage's own servers in parallel, with the same weights.

Also choose their number and GPUs.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.utils.devices import VISIBLE, visible_devices

SUFFIX = ".server.log"
# Makes one with this log. It sees the GPUs that are named, as CUDA_VISIBLE_DEVICES names them; None: all that this process sees.
Make = Callable[[Path, str | None], SGLangServer]


def start_all(stack: ExitStack, engine: EngineConfig, log: Path, make: Make) -> list[SGLangServer]:
    """Return the servers, ready, until the stack is closed. The first writes `log`, the others write files beside it.

    All are started before the first wait: each takes a while. Raises what SGLangServer does, and UserError if there are too few GPUs.
    """
    servers = [make(log_of(log, number), gpus) for number, gpus in enumerate(gpus_of(engine, visible_devices()))]
    for server in servers:
        stack.callback(server.stop)
        server.begin()
    return [stack.enter_context(server) for server in servers]


def log_of(log: Path, number: int) -> Path:
    """Return the log file of a server, numbered from 0."""
    if number == 0:
        return log
    stem = log.name.removesuffix(SUFFIX)
    return log.with_name(f"{stem}.{number + 1}{log.name.removeprefix(stem)}")


def gpus_of(engine: EngineConfig, visible: Sequence[str]) -> list[str | None]:
    """Return the GPUs of each server, with commas, among those that this process sees; None: it sees what this process sees.

    Processes that train have the first ones (distributed.py), so that servers with GPUs to themselves have the last.
    Raises UserError if there are too few.
    """
    each, count = engine.tensor_parallel, engine.gpus
    if not visible or (count == 1 and not engine.own_gpus):
        return [None] * engine.replicas
    if len(visible) < count:
        raise UserError(
            f"replicas is {engine.replicas} and tensor_parallel {each}, which takes {count} GPUs, but the number that is visible here "
            f"({VISIBLE}) is {len(visible)}: lower one of the two."
        )
    own = visible[-count:] if engine.own_gpus else visible[:count]
    return [",".join(own[first : first + each]) for first in range(0, count, each)]
