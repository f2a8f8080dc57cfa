"""The servers that a stage starts itself, with the same weights: how many, on which GPUs, and all at the same time."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.execution.devices import VISIBLE, visible_devices
from dagrpo.params.runtime import Engine
from dagrpo.rollout.engine.server import SGLangServer

SUFFIX = ".server.log"
# Makes one with this log. It sees the one GPU that is named; None: all that this process sees.
Make = Callable[[Path, str | None], SGLangServer]


def start_all(stack: ExitStack, engine: Engine, log: Path, make: Make) -> list[SGLangServer]:
    """The servers, ready, until the stack is closed. The first writes `log`, the others write files beside it.

    None is waited for before all have begun: each takes a while. Raises what SGLangServer does; UserError: too few GPUs.
    """
    servers = [make(log_of(log, number), gpu) for number, gpu in enumerate(gpus_of(engine, visible_devices()))]
    for server in servers:
        stack.callback(server.stop)
        server.begin()
    return [stack.enter_context(server) for server in servers]


def log_of(log: Path, number: int) -> Path:
    """The file that a server writes, numbered from 0."""
    if number == 0:
        return log
    stem = log.name.removesuffix(SUFFIX)
    return log.with_name(f"{stem}.{number + 1}{log.name.removeprefix(stem)}")


def gpus_of(engine: Engine, visible: Sequence[str]) -> list[str | None]:
    """The GPU of each server, among those that this process sees; None: it sees what this process sees.

    Processes that train have the first ones (distributed.py), so that servers with GPUs to themselves have the last.
    """
    count = engine.replicas
    if not visible or (count == 1 and not engine.own_gpus):
        return [None] * count
    if len(visible) < count:
        raise UserError(
            f"runtime.engine.replicas is {count}, and each server needs a GPU, but the number that is visible here ({VISIBLE}) is "
            f"{len(visible)}: set it to {len(visible)}."
        )
    return [*(visible[-count:] if engine.own_gpus else visible[:count])]
