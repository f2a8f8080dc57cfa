"""Functions that a test offers to the policy."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Literal

from dagrpo.tools import InfrastructureFailure


def area(width: float, height: float = 1.0, unit: Literal["cm", "m"] = "cm", names: list[str] | None = None) -> str:
    """Compute the area of a rectangle.

    Give both sides in the same unit.

    Args:
        width: The first side,
            never negative.
        height: The second side.
        unit: Of both.

    Returns:
        The area with its unit.
    """
    if width < 0:
        raise ValueError("a side is negative")
    return f"{width * height:g} {unit}^2"


async def later(number: int) -> dict[str, int]:
    """Wait a moment, and double a number."""
    await asyncio.sleep(0)
    return {"doubled": 2 * number}


def leave() -> None:
    """End the program."""
    raise SystemExit(3)


def broken() -> None:
    """Fail for no reason of the caller's."""
    raise InfrastructureFailure("the database is gone")


def alarmed() -> None:
    """Set an alarm."""
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def silent(x: int) -> int:
    return x


def untyped(x) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Return x."""
    return x


def starred(*numbers: int) -> int:
    """Add numbers."""
    return sum(numbers)


def odd(x: Callable[[], int]) -> None:
    """Take something that no JSON is."""


NUMBER = 3
