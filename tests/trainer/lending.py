"""One real server for several runs of the trainer, which starts one for each by itself."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dagrpo.engine import open_engine
from dagrpo.engine.interface import RolloutEngine
from dagrpo.engine.pool import ServerPool


def lending(pool: ServerPool) -> Any:
    """An opener that hands out the pool, which loads the weights of the run first."""

    @contextmanager
    def open_it(*_: object, **told: Any) -> Iterator[RolloutEngine]:
        pool.load(told["weights"], told["version"])
        yield pool

    return open_it


def lending_served(stack: ExitStack) -> Any:
    """Return an opener whose first engine stays open in `stack`; later runs of the same model load their adapter into it."""
    opened: list[Any] = []

    @contextmanager
    def open_it(*places: Any, **told: Any) -> Iterator[RolloutEngine]:
        if opened:
            opened[0].load(told["adapter"].tensors, told["version"])
        else:
            opened.append(stack.enter_context(open_engine(*places, **told)))
        yield opened[0]

    return open_it
