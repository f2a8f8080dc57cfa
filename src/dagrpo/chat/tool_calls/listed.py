"""Parse consecutive JSON calls that end where their JSON ends."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from dagrpo.chat.tool_calls import MOST_CALLS, Attempt, Status, unread
from dagrpo.chat.tool_calls.json_text import Unreadable, json_at
from dagrpo.chat.tool_calls.marked import Broken, named_call, object_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Form of a list of calls."""

    opening: str  # the marker before the first; a call that cannot be read ends where the next one stands
    between: re.Pattern[str] | None = None  # what parts two calls; None: there is only one


def opened_calls(
    text: str, opening: str, begin: int, calls_of: Callable[[str, int], Iterable[Attempt]]
) -> Iterator[Attempt]:
    """Yield the calls after each opening marker from `begin` on. calls_of: text, marker position -> its calls, one at least."""
    start = text.find(opening, begin)
    for position in count():
        if start < 0:
            return
        end = start
        for attempt in calls_of(text, start) if position < MOST_CALLS else [_unread(text, start, opening)]:
            yield attempt
            end = attempt.end
        start = text.find(opening, end)


def listed_calls(text: str, start: int, begin: int, listing: Listing, name: str = "") -> Iterator[Attempt]:
    """Yield the calls from `begin` on, as long as a separator follows; the first attempt starts at `start`.

    name: the tool's, where the JSON has nothing but its arguments.
    """
    for position in count():
        if position == MOST_CALLS:
            yield _unread(text, start, listing.opening)
            return
        attempt = _attempt(text, (start, begin), listing, name)
        yield attempt
        following = listing.between.match(text, attempt.end) if listing.between else None
        if following is None:
            return
        start = begin = following.end()


def _attempt(text: str, places: tuple[int, int], listing: Listing, name: str) -> Attempt:
    start, begin = places
    try:
        value, end = json_at(text, begin)
    except Unreadable as error:
        end = _next(text, begin, listing.opening)
        status: Status = "unclosed" if error.cut_off else "undecodable"
        fault = f"The call is cut off. {error}" if error.cut_off else str(error)
        return Attempt(start=start, end=end, name=name, status=status, fault=fault)
    try:
        name, arguments = (name, object_of(value, name)) if name else named_call(value)
    except Broken as error:
        return Attempt(start=start, end=end, name=error.name, status=error.status, fault=error.fault)
    return Attempt(start=start, end=end, name=name, arguments=arguments)


def _unread(text: str, start: int, opening: str) -> Attempt:
    return unread(start, _next(text, start + 1, opening))


def _next(text: str, begin: int, opening: str) -> int:
    """Return the position of the next opening marker, or the text's end."""
    following = text.find(opening, begin)
    return following if following >= 0 else len(text)
