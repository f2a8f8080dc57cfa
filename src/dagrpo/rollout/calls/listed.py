"""Calls in JSON that end where their JSON ends, one after another."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from dagrpo.rollout.calls import MOST_CALLS, Attempt, Status, unread
from dagrpo.rollout.calls.json_text import Unreadable, json_at
from dagrpo.rollout.calls.marked import Broken, named_call, object_of


def opened_calls(
    text: str, opening: str, begin: int, calls_of: Callable[[str, int, int], Iterable[Attempt]]
) -> Iterator[Attempt]:
    """The calls after each opening marker from `begin` on.

    calls_of: text, position of a marker, that of the next one -> its calls, one at least.
    """
    start = text.find(opening, begin)
    for position in count():
        if start < 0:
            return
        following = text.find(opening, start + len(opening))
        limit = following if following >= 0 else len(text)
        attempts = calls_of(text, start, limit) if position < MOST_CALLS else [unread(start, limit)]
        for attempt in attempts:
            yield attempt
            start = attempt.end
        start = text.find(opening, start)


def listed_calls(
    text: str, start: int, begin: int, limit: int, between: re.Pattern[str] | None, name: str = ""
) -> Iterator[Attempt]:
    """The calls from `begin` on, as long as `between` matches after one; the first attempt starts at `start`.

    limit: where a call ends that cannot be read. name: of the tool, where the JSON has nothing but its arguments.
    """
    for position in range(MOST_CALLS):
        attempt = _attempt(text, (start, begin, limit), name)
        yield attempt
        following = between.match(text, attempt.end) if between and attempt.end < limit else None
        if following is None:
            return
        start = begin = following.end()
        if position == MOST_CALLS - 1:
            yield unread(start, limit)


def _attempt(text: str, places: tuple[int, int, int], name: str) -> Attempt:
    start, begin, limit = places
    end = limit
    try:
        value, end = json_at(text, begin)
        name, arguments = (name, object_of(value, name)) if name else named_call(value)
    except Unreadable as error:
        status: Status = "unclosed" if error.cut_off else "undecodable"
        fault = f"The call is cut off. {error}" if error.cut_off else str(error)
        return Attempt(start=start, end=end, name=name, status=status, fault=fault)
    except Broken as error:
        return Attempt(start=start, end=end, name=error.name or name, status=error.status, fault=error.fault)
    return Attempt(start=start, end=end, name=name, arguments=arguments)
