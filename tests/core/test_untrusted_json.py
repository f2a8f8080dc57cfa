"""JSON of other programs, read within limits."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from tests.hostile import anything

from dagrpo.core.untrusted_json import DEEPEST, MOST_COMMAS, MOST_OPENED, read_json, read_json_values


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"score": 1, "score": 10}', "a key twice"),
        ('[{"a": {"b": 1, "\\u0062": 1}}]', "a key twice"),
        ("1e999", "too large"),
        ('{"x": [-1e999]}', "too large"),
        ("NaN", "no JSON number"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "levels"),
        ("[" * 100_000, "levels|brackets"),
        ('"\\ud800"', "surrogate"),
        ('{"\\ud800": 1}', "surrogate"),
        (b"\xff", "UTF-8"),
        ("1" * 5000, "digit"),
        ("[" + "[]," * MOST_OPENED + "1]", "brackets"),
        ("[" + "0," * (MOST_COMMAS + 1) + "0]", "commas"),
    ],
)
def test_a_value_that_readers_could_take_differently_or_not_bear_is_refused(text: str | bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_json(text)
    with pytest.raises(ValueError, match=fault):
        read_json_values(text if isinstance(text, bytes) else text.encode())


@given(anything)
def test_any_json_is_read_as_written_or_refused_by_a_sentence(value: object) -> None:
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        with pytest.raises(ValueError, match="no JSON number"):
            read_json(json.dumps(value))
    else:
        assert json.dumps(read_json(text)) == text


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,", b'"",', b"[0],"])
def test_a_megabyte_of_small_values_is_read_or_refused(part: bytes) -> None:
    with suppress(ValueError):
        read_json(b"[" + part * ((1 << 20) // len(part)) + b"0]")
