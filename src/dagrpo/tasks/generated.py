"""What the seeded generators of problems share: distinct draws, which problems demonstrate a call, and the whole as Problems.

Not here: what a problem is.
"""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from dagrpo.errors import UserError
from dagrpo.records import Example
from dagrpo.search import Passage
from dagrpo.tasks.task import Problems

PATIENCE = 1000  # draws in a row that give nothing new: there is hardly anything left to draw
Drawn = TypeVar("Drawn")


def distinct(draw: Callable[[], Drawn], identity: Callable[[Drawn], Hashable], what: str) -> Iterator[Drawn]:
    """What `draw` gives, each once, without an end. UserError names `what` when it gives nothing new any more."""
    seen: set[Hashable] = set()
    while True:
        for _ in range(PATIENCE):
            drawn = draw()
            if identity(drawn) not in seen:
                break
        else:
            raise UserError(
                f"{what} asks for more distinct problems than there are ({len(seen):,}): lower train or test."
            )
        seen.add(identity(drawn))
        yield drawn


def demonstrating(count: int, share: float, seed: str) -> frozenset[int]:
    """Which of so many problems are the share that demonstrates a call."""
    return frozenset(random.Random(f"{seed}/demonstrations").sample(range(count), round(share * count)))


def generated(
    task: str,
    splits: Mapping[str, Sequence[Example]],
    *,
    levels: Sequence[str] = (),
    passages: Sequence[Passage] = (),
) -> Problems:
    """The problems of a generator, which needs no file and repeats nothing."""
    counts = {split: len(examples) for split, examples in splits.items()}
    return Problems(
        splits={split: [replace(example, task=task) for example in examples] for split, examples in splits.items()},
        source=f"generator {task}",
        origin="generator",
        revision=None,
        files={},
        expected=counts,
        read=counts,
        levels=levels,
        passages=passages,
    )
