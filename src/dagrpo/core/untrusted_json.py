"""Parse JSON from untrusted programs within limits."""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

SPACE = re.compile(r"\s*")
DEEPEST = 64  # levels of lists and objects
MOST_OPENED = 200_000  # brackets and braces, which take a second to read
MOST_COMMAS = 1_000_000  # values, which take up to three seconds and 250 MiB
_CHECKED = (str, list, dict)  # numbers need no look
Read = TypeVar("Read")


def read_json(data: bytes | str, *, constants: bool = False, most_opened: int = MOST_OPENED) -> Any:
    """Return the parsed value. Raises ValueError, with a sentence, if it is invalid or exceeds a limit.

    constants: NaN and Infinity, which are no JSON, are numbers. most_opened: brackets and braces.
    """
    _require_few(data, most_opened)
    value = _within_limits(lambda: json.loads(data, **_strict(constants)))
    require_storable(value)
    return value


def read_json_values(line: bytes, *, constants: bool = False) -> list[Any]:
    """Return the consecutive values on a line. Raises ValueError like `read_json`, for the line as a whole."""
    _require_few(line)
    values = _within_limits(lambda: list(_values(line.decode(), json.JSONDecoder(**_strict(constants)))))
    require_storable(values)
    return values


def _values(text: str, decoder: json.JSONDecoder) -> Iterator[Any]:
    text = text.rstrip()
    begin = _after_space(text, 0)
    while begin < len(text):
        value, end = decoder.raw_decode(text, begin)
        yield value
        begin = _after_space(text, end)


def _after_space(text: str, begin: int) -> int:
    space = SPACE.match(text, begin)
    assert space is not None, "no space at all matches"
    return space.end()


def _within_limits(read: Callable[[], Read]) -> Read:
    try:
        return read()
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at character {error.pos})") from None


def _require_few(data: bytes | str, most_opened: int = MOST_OPENED) -> None:
    text = data if isinstance(data, bytes) else data.encode(errors="surrogatepass")
    opened, commas = text.count(b"[") + text.count(b"{"), text.count(b",")
    if opened > most_opened:
        raise ValueError(f"it has more than {most_opened} brackets")
    if commas > MOST_COMMAS:
        raise ValueError(f"it has more than {MOST_COMMAS} commas")


def _strict(constants: bool) -> dict[str, Any]:
    """Return the arguments of `json` that refuse a key given twice, of which readers take different ones, and infinite numbers."""
    numbers = {} if constants else {"parse_float": _finite}
    return {"parse_constant": _constant(constants), "object_pairs_hook": _once, **numbers}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large")
    return number


def _constant(allowed: bool) -> Callable[[str], float]:
    return float if allowed else _refuse_constant


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def require_storable(value: Any) -> None:
    """Raise ValueError if a value is nested too deeply, or holds what cannot be written again."""
    waiting = [(value, 1)]
    while waiting:
        each, level = waiting.pop()
        if level > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
        if isinstance(each, str):
            _require_text(each)
        elif isinstance(each, dict):
            waiting += [(part, level + 1) for pair in each.items() for part in pair if isinstance(part, _CHECKED)]
        elif isinstance(each, list):
            waiting += [(part, level + 1) for part in each if isinstance(part, _CHECKED)]


def _require_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is not text") from None
