"""Sandboxes for all tests here; they skip where no program can be isolated."""

from collections.abc import Callable, Iterator

import pytest
from packages.dagrpo_sandbox.tests.running import without_sandbox

from dagrpo_answers.errors import UserError
from dagrpo_answers.unit_tests.pool import SandboxedTests
from dagrpo_answers.verifier import ProgramLimits

Share = Callable[..., float | None]


@pytest.fixture(scope="session")
def sandboxes() -> Iterator[SandboxedTests]:
    tests = SandboxedTests(ProgramLimits(seconds=1.0, memory_mb=256, parallel=2))
    try:
        tests.shares([("print(1)", '{"inputs": [""], "outputs": ["1"]}')], fractions=False)
    except UserError as error:
        without_sandbox(error)
    yield tests
    tests.close()


@pytest.fixture
def share(sandboxes: SandboxedTests) -> Share:
    """The share of tests that a program passes."""

    def of(program: str, ground_truth: str, *, fractions: bool = True) -> float | None:
        return sandboxes.shares([(program, ground_truth)], fractions=fractions)[0]

    return of
