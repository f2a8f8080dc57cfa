"""Common parts of generated tasks: distinct draws, demonstrations, and splits."""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.task import TaskRows
from dagrpo.tools.retrieval import Passage

PATIENCE = 1000  # draws in a row that give nothing new: there is hardly anything left to draw
Item = TypeVar("Item")


def distinct(draw: Callable[[], Item], identity: Callable[[Item], Hashable], what: str) -> Iterator[Item]:
    """Yield distinct results of `draw` without end. Raises UserError, which names `what`, if only repeated ones come."""
    seen: set[Hashable] = set()
    while True:
        for _ in range(PATIENCE):
            item = draw()
            if identity(item) not in seen:
                break
        else:
            raise UserError(f"{what} requests more distinct problems than exist ({len(seen):,}): lower train or test.")
        seen.add(identity(item))
        yield item


def distinct_in_turn(
    draws: Sequence[Callable[[], Item]], identity: Callable[[Item], Hashable], what: str, count: int
) -> list[Item]:
    """Return `count` results of several draws in turn, distinct within each. Raises UserError as `distinct`."""
    streams = [distinct(draw, identity, what) for draw in draws]
    return [next(streams[number % len(streams)]) for number in range(count)]


def demonstrating(count: int, share: float, seed: str) -> frozenset[int]:
    """Return the indices of the share of `count` problems that demonstrates a call."""
    return frozenset(random.Random(f"{seed}/demonstrations").sample(range(count), round(share * count)))


def generated(
    task: str,
    train: Sequence[Row],
    test: Sequence[Row],
    *,
    data_source: str = "",
    levels: Sequence[str] = (),
    passages: Sequence[Passage] = (),
) -> TaskRows:
    """Return the problems of a generator, which needs no file and repeats nothing, each with its place and `data_source`, else the task."""
    rows = {
        split: [
            replace(row, task=task, split=split, index=index, data_source=data_source or task)
            for index, row in enumerate(own)
        ]
        for split, own in (("train", train), ("test", test))
    }
    counts = {split: len(own) for split, own in rows.items()}
    return TaskRows(
        splits=rows,
        source=f"generator {task}",
        origin="generator",
        revision=None,
        files={},
        expected=counts,
        read=counts,
        levels=levels,
        passages=passages,
    )


def calling(tool: str, arguments: Mapping[str, Any], result: str, answer: str) -> tuple[dict[str, Any], ...]:
    """Return the demonstration of one call, its result and the answer."""
    return call_message(tool, arguments), result_message(result), answer_message(answer)


def call_message(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an assistant's message that only calls one function."""
    call = {"type": "function", "function": {"name": function, "arguments": dict(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result_message(text: str) -> dict[str, Any]:
    """Return a message with a tool's result."""
    return {"role": "tool", "content": text}


def answer_message(text: str) -> dict[str, Any]:
    """Return an assistant's message without a call."""
    return {"role": "assistant", "content": text}
