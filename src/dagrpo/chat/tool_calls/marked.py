"""Parse calls between opening and closing markers, in JSON or in tags."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from dagrpo.chat.tool_calls import MOST_CALLS, Attempt, Status, unread
from dagrpo.chat.tool_calls.json_text import Unreadable, after_spaces, json_at


class Broken(Exception):
    """Error of a body that is no valid call."""

    def __init__(self, status: Status, fault: str, name: str = "") -> None:
        super().__init__(fault)
        self.status: Status = status
        self.fault = fault
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Parsed content between two markers."""

    name: str
    arguments: Mapping[str, Any]
    end: int  # where reading stopped


ReadBody = Callable[[str, int], Body]  # text, start -> body; Broken or Unreadable


def marked_calls(text: str, opening: str, closing: str, read_body: ReadBody) -> Iterator[Attempt]:
    """Yield one attempt per opening marker outside of other calls. After a broken body, reading resumes at the next opening marker."""
    markers, start = (opening, closing), text.find(opening)
    for position in count():
        if start < 0:
            return
        if position < MOST_CALLS:
            attempt = _attempt(text, start, markers, read_body)
        else:
            attempt = unread(start, _extent(text, start + len(opening), markers)[0])
        yield attempt
        start = text.find(opening, attempt.end)


def _attempt(text: str, start: int, markers: tuple[str, str], read_body: ReadBody) -> Attempt:
    opening, closing = markers
    begin = start + len(opening)
    try:
        body = read_body(text, begin)
    except (Unreadable, Broken) as error:
        return _broken(text, start, markers, error)
    close = after_spaces(text, body.end)
    if text.startswith(closing, close):
        return Attempt(start=start, end=close + len(closing), name=body.name, arguments=body.arguments)
    return _not_closed(text, start, markers, body)


def _broken(text: str, start: int, markers: tuple[str, str], error: Unreadable | Broken) -> Attempt:
    end, closed = _extent(text, start + len(markers[0]), markers)
    name = error.name if isinstance(error, Broken) else ""
    status: Status = error.status if isinstance(error, Broken) else "undecodable"
    if not closed:
        return Attempt(start=start, end=end, name=name, status="unclosed", fault=f"The call has no {markers[1]}.")
    return Attempt(start=start, end=end, name=name, status=status, fault=str(error))


def _not_closed(text: str, start: int, markers: tuple[str, str], body: Body) -> Attempt:
    end, closed = _extent(text, body.end, markers)
    fault = f"Between the call and {markers[1]} stands something else." if closed else f"The call has no {markers[1]}."
    return Attempt(
        start=start,
        end=end,
        name=body.name,
        arguments=body.arguments,
        status="undecodable" if closed else "unclosed",
        fault=fault,
    )


def _extent(text: str, start: int, markers: tuple[str, str]) -> tuple[int, bool]:
    """Return the end of a broken call (after its closing marker, or before the next opening one), and whether it is closed."""
    opening, closing = markers
    following = text.find(opening, start)
    limit = following if following >= 0 else len(text)
    close = text.find(closing, start, limit)
    return (close + len(closing), True) if close >= 0 else (limit, False)


def json_call(text: str, start: int, keys: Sequence[str] = ("arguments", "parameters")) -> Body:
    """Parse the body {"name": ..., "arguments": {...}}. Raises Unreadable or Broken, which say what is wrong."""
    value, end = json_at(text, start)
    name, arguments = named_call(value, keys)
    return Body(name=name, arguments=arguments, end=end)


def named_call(value: Any, keys: Sequence[str] = ("arguments", "parameters")) -> tuple[str, Mapping[str, Any]]:
    """Return name and arguments of a call in JSON. Raises Broken, which says what is wrong."""
    if not isinstance(value, dict):
        raise Broken("undecodable", 'A call is a JSON object {"name": ..., "arguments": {...}}.')
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Broken("missing_name", 'The call has no "name" that says which tool is meant.')
    return name, object_of(next((value[key] for key in keys if key in value), {}), name)


def object_of(arguments: Any, name: str) -> Mapping[str, Any]:
    """Return the arguments. Raises Broken if they are not a JSON object."""
    if isinstance(arguments, dict):
        return arguments
    raise Broken("wrong_arguments", "The arguments are not a JSON object.", name)
