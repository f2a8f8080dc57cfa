"""One judge for all tests of a process, and a measure of growth."""

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from dagrpo_answers import Judge

Growth = Callable[[Callable[[str], object], Callable[[int], str]], float]

if settings.get_current_profile_name() == "default":  # these tests by themselves, on a machine that may be busy
    settings.register_profile("any machine", deadline=None, max_examples=25)
    settings.load_profile("any machine")

SMALL = 5_000  # characters
FACTOR = 8
NOISE_SECONDS = 100e-6


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    with Judge(seconds=5.0) as judge:
        yield judge


@pytest.fixture
def growth() -> Growth:
    """How many times as long a text takes that is 8 times as long: 8 when linear, 64 when quadratic."""

    def measure(read: Callable[[str], object], text_of_length: Callable[[int], str]) -> float:
        small, large = (_seconds(read, text_of_length(length)) for length in (SMALL, FACTOR * SMALL))
        return large / max(small, NOISE_SECONDS)

    return measure


def _seconds(read: Callable[[str], object], text: str) -> float:
    """The quickest of three readings, in processor time."""
    return min(_once(read, text) for _ in range(3))


def _once(read: Callable[[str], object], text: str) -> float:
    started = time.process_time()
    read(text)
    return time.process_time() - started
