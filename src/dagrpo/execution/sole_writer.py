"""A stage is the only writer of its outputs, whatever started it: Snakemake, DVC, or somebody by hand."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dagrpo.execution.record import STATES
from dagrpo.sole import alone_with

WRITING = STATES / "writing"


@contextmanager
def sole_writer(outputs: Iterable[Path]) -> Iterator[list[int]]:
    """Hold all outputs until this process and the children that inherit these descriptors have ended.

    UserError names who writes one of them.
    """
    with ExitStack() as held:
        yield [held.enter_context(alone_with(path, _lock_of(path))) for path in sorted(set(outputs))]


def _lock_of(path: Path) -> Path:
    return WRITING / f"{hashlib.sha256(bytes(path)).hexdigest()[:16]}.lock"
