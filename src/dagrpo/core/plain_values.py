"""Limits on any parameter's value, checked before its section's own.

No experiment meets them. So later code need not expect a number that cannot be written, a text without an end, or a structure
that exhausts the stack. The sections check keys and their values.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.core.escape import MOST_TOLD, one_line, sentences, shown, visible

DEEPEST = 16  # levels of sections and lists
MOST_VALUES = 5000  # the largest params.yaml today has 500
LONGEST_TEXT = 4096  # characters, as of a path
LONGEST_KEY = 200
LARGEST = 2**63
LONGEST_PATH_SHOWN = 120


def require_plain(values: Any, source: str) -> None:
    """Raise UserError, with a message per fault, if values exceed the limits of every parameter."""
    if faults := list(islice(_faults(values), MOST_TOLD + 1)):
        raise UserError(sentences((f"{source}: {fault}." for fault in faults[:MOST_TOLD]), MOST_TOLD))


def _faults(values: Any) -> Iterator[str]:
    """Yield faults without recursion: excessive nesting is one of them."""
    waiting: list[tuple[str, Any, int]] = [("", values, 0)]
    seen = 0
    while waiting:
        path, value, level = waiting.pop()
        seen += 1
        if seen > MOST_VALUES:
            yield f"it holds more than {MOST_VALUES:,} values: remove what is not needed"
            return
        if level > DEEPEST:
            yield f"{_named(path)} is nested in more than {DEEPEST} levels: make it flatter"
        elif isinstance(value, Mapping):
            yield from (_fault_of_key(path, key) for key in value if not _is_key(key))
            inside = [(f"{path}.{key}", each, level + 1) for key, each in value.items() if _is_key(key)]
            waiting += reversed(inside)
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}.{index}", each, level + 1) for index, each in reversed([*enumerate(value)])]
        elif fault := _fault(value):
            yield f"{_named(path)} {fault}"


def _named(path: str) -> str:
    return f"`{one_line(path.removeprefix('.'), LONGEST_PATH_SHOWN)}`"


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and len(key) <= LONGEST_KEY and visible(key) == key


def _fault_of_key(path: str, key: Any) -> str:
    place = f"a key of {_named(path)}" if path else "a section"
    return f"{place} is called {shown(key)}: write a text of at most {LONGEST_KEY} visible characters"


def _fault(value: Any) -> str | None:
    """Return the fault of a value that is neither a mapping nor a list, if any."""
    if isinstance(value, str):
        return _fault_of_text(value)
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}: input should be a finite number"
    if isinstance(value, int):
        return None if -LARGEST <= value < LARGEST else f"is {shown(value)}: give a number of at most 64 bits"
    return None if value is None else f"is {shown(value)}: write a number, a text, true, false or null"


def _fault_of_text(text: str) -> str | None:
    if len(text) > LONGEST_TEXT:
        return f"has {len(text):,} characters: give at most {LONGEST_TEXT:,}"
    if (seen := visible(text)) != text:
        return f"is '{one_line(seen, 80)}', with characters that nobody sees: remove them"
    return None
