"""Simulated users for tests: each asks again until it has heard so many answers."""

from collections.abc import Callable, Sequence

from dagrpo.core.types import Row
from dagrpo.tools.simulated_users import Interaction


def _wants(answers: int) -> Callable[[Row, Sequence[str]], str | None]:
    return lambda row, heard: "again" if len(heard) < answers else None


ONE = Interaction(reply=_wants(1))
TWO = Interaction(reply=_wants(2))
STUBBORN = Interaction(reply=_wants(3))
