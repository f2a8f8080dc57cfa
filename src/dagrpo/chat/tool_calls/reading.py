"""Parse calls in a text, between markers or one after another."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from dagrpo.chat.tool_calls import MOST_CALLS, Attempt, Status
from dagrpo.core.untrusted_json import DEEPEST, require_storable

_SPACES = re.compile(r"[ \t\r\n]*")
_UNDECODABLE: Status = "undecodable"
Body = tuple[str, Mapping[str, Any], int]  # name, arguments, and where reading stopped
ReadBody = Callable[[str, int], Body]  # text, start -> body; Broken


class Broken(Exception):
    """Error of a body that is no valid call: a sentence for the policy. Status `unclosed`: the text ends before its JSON does."""

    def __init__(self, status: Status, fault: str, name: str = "") -> None:
        super().__init__(fault)
        self.status: Status = status
        self.name = name


# ---- between markers ----


def marked_calls(text: str, opening: str, closing: str, read_body: ReadBody) -> Iterator[Attempt]:
    """Yield one attempt per opening marker outside of other calls. After a broken body, reading resumes at the next opening marker."""
    markers, start = (opening, closing), text.find(opening)
    for position in count():
        if start < 0:
            return
        if position < MOST_CALLS:
            attempt = _marked(text, start, markers, read_body)
        else:
            attempt = _unread(start, _extent(text, start + len(opening), markers)[0])
        yield attempt
        start = text.find(opening, attempt.end)


def _marked(text: str, start: int, markers: tuple[str, str], read_body: ReadBody) -> Attempt:
    closing, read_to = markers[1], start + len(markers[0])
    name, arguments, status = "", None, _UNDECODABLE
    fault = f"Between the call and {closing} stands something else."
    try:
        name, arguments, read_to = read_body(text, read_to)
    except Broken as error:
        name, status, fault = error.name, error.status, str(error)
    else:
        close = after_spaces(text, read_to)
        if text.startswith(closing, close):
            return Attempt(start=start, end=close + len(closing), name=name, arguments=arguments)
    end, closed = _extent(text, read_to, markers)
    if not closed:
        status, fault = "unclosed", f"The call has no {closing}."
    elif status == "unclosed":
        status = _UNDECODABLE
    return Attempt(start=start, end=end, name=name, arguments=arguments, status=status, fault=fault)


def _extent(text: str, start: int, markers: tuple[str, str]) -> tuple[int, bool]:
    """Return the end of a broken call (after its closing marker, or before the next opening one), and whether it is closed."""
    opening, closing = markers
    limit = _next(text, start, opening)
    close = text.find(closing, start, limit)
    return (close + len(closing), True) if close >= 0 else (limit, False)


# ---- one after another ----


def opened_calls(
    text: str, opening: str, begin: int, calls_of: Callable[[str, int], Iterable[Attempt]]
) -> Iterator[Attempt]:
    """Yield the calls after each opening marker from `begin` on. calls_of: text, marker position -> its calls, one at least."""
    start = text.find(opening, begin)
    for position in count():
        if start < 0:
            return
        end = start
        refused = [_unread(start, _next(text, start + 1, opening))] if position >= MOST_CALLS else None
        for attempt in refused or calls_of(text, start):
            yield attempt
            end = attempt.end
        start = text.find(opening, end)


def listed_calls(
    text: str, start: int, begin: int, opening: str, between: re.Pattern[str] | None = None, name: str = ""
) -> Iterator[Attempt]:
    """Yield the calls from `begin` on, as long as what parts two calls follows; the first attempt starts at `start`.

    A call that cannot be read ends where the next `opening` stands. name: the tool's, where the JSON has nothing but its arguments.
    """
    for position in count():
        if position == MOST_CALLS:
            yield _unread(start, _next(text, start + 1, opening))
            return
        attempt = _listed(text, (start, begin), opening, name)
        yield attempt
        following = between.match(text, attempt.end) if between else None
        if following is None:
            return
        start = begin = following.end()


def _listed(text: str, places: tuple[int, int], opening: str, name: str) -> Attempt:
    start, begin = places
    end = None
    try:
        value, end = json_at(text, begin)
        name, arguments = (name, object_of(value, name)) if name else named_call(value)
    except Broken as error:
        fault = f"The call is cut off. {error}" if error.status == "unclosed" else str(error)
        name, end = (name, _next(text, begin, opening)) if end is None else (error.name, end)
        return Attempt(start=start, end=end, name=name, status=error.status, fault=fault)
    return Attempt(start=start, end=end, name=name, arguments=arguments)


def _unread(start: int, end: int) -> Attempt:
    """Return the attempt that stands for a call beyond the limit, which is not read."""
    fault = f"A turn may hold {MOST_CALLS} calls; this is one more and was not read."
    return Attempt(start=start, end=end, status="undecodable", fault=fault)


def _next(text: str, begin: int, opening: str) -> int:
    following = text.find(opening, begin)
    return following if following >= 0 else len(text)


# ---- JSON ----


def json_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at or after `start`; return it and its end. Raises Broken.

    The value determines its own end, so a closing marker within one of its strings ends nothing.
    """
    start = after_spaces(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise Broken("undecodable", "The JSON is nested too deeply.") from None
    except json.JSONDecodeError as error:
        cut_off = error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())
        fault = f"It is not valid JSON: {error.msg} at character {error.pos - start}."
        raise Broken("unclosed" if cut_off else "undecodable", fault) from None
    except ValueError as error:  # _constant, _float, and Python's own limit on the digits of an integer
        raise Broken("undecodable", f"It is not valid JSON: {str(error).partition(';')[0][:200]}.") from None
    raw = text[start:end]
    if "\\u" in raw or raw.count("[") + raw.count("{") > DEEPEST:  # else it can be neither too deep nor half a pair
        try:
            require_storable(value)
        except ValueError as error:
            raise Broken("undecodable", f"The JSON cannot be used: {error}.") from None
    return value, end


def json_call(text: str, start: int) -> Body:
    """Parse the body {"name": ..., "arguments": {...}}. Raises Broken."""
    value, end = json_at(text, start)
    return *named_call(value), end


def named_call(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return name and arguments of a call in JSON. Raises Broken."""
    if not isinstance(value, dict):
        raise Broken("undecodable", 'A call is a JSON object {"name": ..., "arguments": {...}}.')
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Broken("missing_name", 'The call has no "name" that says which tool is meant.')
    return name, object_of(value.get("arguments", value.get("parameters", {})), name)


def object_of(arguments: Any, name: str) -> Mapping[str, Any]:
    """Return the arguments. Raises Broken if they are not a JSON object."""
    if isinstance(arguments, dict):
        return arguments
    raise Broken("wrong_arguments", "The arguments are not a JSON object.", name)


def after_spaces(text: str, start: int) -> int:
    """Return the first position from `start` on with no white space."""
    match = _SPACES.match(text, start)
    return match.end() if match else start


def spelled_json(value: Mapping[str, Any]) -> str:
    """Write a value as the templates' `tojson` does: spaces after separators, and no escapes for letters."""
    return json.dumps(value, ensure_ascii=False)


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_float)
