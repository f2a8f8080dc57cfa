"""One grader for all tests of a process."""

from collections.abc import Iterator

import pytest

from dagrpo.rewards.grading import Grader


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    with Grader(verify_seconds=5.0, processes=1) as grader:
        yield grader
