"""Parse JSON that a policy wrote in the middle of a text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from dagrpo.core.untrusted_json import DEEPEST, require_storable

_SPACES = re.compile(r"[ \t\r\n]*")


class Unreadable(Exception):
    """Error of JSON that cannot be parsed, as a sentence for the policy. `cut_off`: the text ends before the value does."""

    def __init__(self, fault: str, *, cut_off: bool = False) -> None:
        super().__init__(fault)
        self.cut_off = cut_off


def json_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at or after `start`; return it and its end. Raises Unreadable.

    The value determines its own end, so a closing marker within one of its strings ends nothing.
    """
    start = after_spaces(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise Unreadable("The JSON is nested too deeply.") from None
    except json.JSONDecodeError as error:
        cut_off = error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())
        fault = f"It is not valid JSON: {error.msg} at character {error.pos - start}."
        raise Unreadable(fault, cut_off=cut_off) from None
    except ValueError as error:  # _constant, _float, and Python's own limit on the digits of an integer
        raise Unreadable(f"It is not valid JSON: {str(error).partition(';')[0][:200]}.") from None
    raw = text[start:end]
    if "\\u" in raw or raw.count("[") + raw.count("{") > DEEPEST:  # else it can be neither too deep nor half a pair
        _refuse(value)
    return value, end


def _refuse(value: Any) -> None:
    try:
        require_storable(value)
    except ValueError as error:
        raise Unreadable(f"The JSON cannot be used: {error}.") from None


def after_spaces(text: str, start: int) -> int:
    """Return the first position from `start` on with no white space."""
    match = _SPACES.match(text, start)
    assert match is not None
    return match.end()


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
