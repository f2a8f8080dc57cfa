"""One real server for several runs of the trainer, which starts one for each by itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from dagrpo.engine.interface import RolloutEngine
from dagrpo.engine.pool import ServerPool


def lending(pool: ServerPool) -> Any:
    """An opener that hands out the pool, which loads the weights of the run first."""

    @contextmanager
    def lent(**told: Any) -> Iterator[RolloutEngine]:
        pool.load(told["weights"], told["version"])
        yield pool

    def open_it(*_: object, **told: Any) -> AbstractContextManager[RolloutEngine]:
        return lent(**told)

    return open_it
