"""JSON from a program that may send anything: read within limits, or refused in a sentence."""

import json
from typing import Any

DEEPEST = 64  # levels of lists and objects


def read_json(data: bytes | str, *, constants: bool = False) -> Any:
    """The value. ValueError says in a sentence why it is none that can be worked with.

    constants: NaN and Infinity, which are no JSON, are numbers.
    """
    try:
        value = json.loads(data, parse_constant=float if constants else _refuse_constant)
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at character {error.pos})") from None
    require_plain(value)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def require_plain(value: Any) -> None:
    """ValueError where a value is nested too deeply, or holds what cannot be written again."""
    waiting = [(value, 1)]
    while waiting:
        each, level = waiting.pop()
        if level > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
        if isinstance(each, str):
            _require_text(each)
        elif isinstance(each, dict):
            waiting += [(part, level + 1) for pair in each.items() for part in pair]
        elif isinstance(each, list):
            waiting += [(part, level + 1) for part in each]


def _require_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is not text") from None
