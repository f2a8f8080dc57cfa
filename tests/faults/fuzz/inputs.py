"""How an input is fuzzed, and how each has to end: refused in sentences within a second of work, or accepted."""

import datetime
import time
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from tests.faults.whole import WHOLE

from dagrpo.core.errors import UserError
from dagrpo.core.escape import MOST_MISTAKES, visible

fuzzed = settings.get_profile(f"faults, {'whole' if WHOLE else 'bounded'}")
SECONDS = 1.0  # of the processor, for a refusal: what runs beside it does not count
SECONDS_OF_WORK = 10.0  # for what is accepted: a text of a million characters is tokenized, compared and written
LONGEST_SENTENCE = 500


def refusal(work: Callable[[], object]) -> str:
    """What is said of an input; "" where it is accepted. AssertionError: it is no sentence, or takes too long."""
    began = time.process_time()
    try:
        work()
        told = ""
    except UserError as error:
        told = str(error)
    assert time.process_time() - began < (SECONDS if told else SECONDS_OF_WORK)
    assert all(len(sentence) < LONGEST_SENTENCE for sentence in told.splitlines())
    assert len(told.splitlines()) <= 2 * (MOST_MISTAKES + 1)
    assert visible(told) == told
    return told


def _nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


_EXTREME: list[Any] = [
    *(10**400, -(10**400), 2**63, -1, 0, 1.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"), True, None),
    *(
        "",
        " ",
        "x" * 1_000_000,
        "\x00",
        "\u202e",
        "\ud800",
        "null",
        "1e999",
        "../../x",
        "/dev/zero",
        "os:system",
        "a.b",
    ),
    *([], {}, [1] * 10_000, ["x"] * 200, {f"k{number}": 1 for number in range(6000)}, _nested(30), _nested(900)),
]
NO_JSON: list[Any] = [1 << 20_000, b"x", datetime.date(2024, 1, 1), {1: 2}, {None: 1}, {(1, 2): 3}, {"x"}, (1, 2)]
json_values = st.one_of(
    st.sampled_from(_EXTREME),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=30),
    st.lists(st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=4),
)
any_values = st.one_of(json_values, st.sampled_from(NO_JSON))
