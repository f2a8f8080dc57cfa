"""Warning if a CPU emulates bfloat16 or float16.

It computes in a type without instructions far more slowly than in float32. A timed product shows it, since processors differ: AVX-512
has instructions for bfloat16 on some, and AVX2 for neither type. Imports torch only when something is timed.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrpo.utils.distributed import World

SIDE = 256  # of the matrices
TRIES = 3
SLOW = 1.5  # times as long as in float32
FULL_TYPE = "float32"


def warning(types: Mapping[str, str]) -> str | None:
    """Return a warning about parameters whose type is slow on this CPU, with what to set; None if all are fast.

    types: the type of each parameter, such as {"training.dtype": "bfloat16"}. Takes some milliseconds for each type.
    """
    times = {dtype: times_as_long(dtype) for dtype in {*types.values()} - {FULL_TYPE}}
    slow = {key: dtype for key, dtype in types.items() if times.get(dtype, 0.0) > SLOW}
    if not slow:
        return None
    names = " and ".join(f"{key} ({dtype})" for key, dtype in slow.items())
    worst = max(times[dtype] for dtype in slow.values())
    return (
        f"This CPU has no fast instructions for {names}: a matrix product takes {worst:.1f} times as long as in float32, and an update "
        "may take longer still. Set float32, unless the run must compute in 16 bits."
    )


def warn_of_slow_types(types: Mapping[str, str], world: "World") -> None:
    """Print the warning, if any, before a stage computes on a CPU; once for all ranks."""
    from dagrpo.utils.console import say

    if world.is_rank_zero and world.device.type == "cpu" and (message := warning(types)) is not None:
        say(message)


def times_as_long(dtype: str) -> float:
    """Time a matrix product in a type on this CPU, in units of float32's time."""
    return _seconds(dtype) / _seconds(FULL_TYPE)


def _seconds(dtype: str) -> float:
    """Return the time of the fastest of several products, on as many threads as torch has."""
    import torch

    matrix = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype))
    seconds = list[float]()
    for _ in range(TRIES + 1):  # the first one warms up
        start = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
