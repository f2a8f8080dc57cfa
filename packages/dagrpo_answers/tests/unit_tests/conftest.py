"""Sandboxes for all tests here; they skip where no program can be isolated."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from packages.dagrpo_sandbox.tests.running import without_sandbox

from dagrpo_answers.errors import UserError
from dagrpo_answers.unit_tests.pool import SandboxedTests
from dagrpo_answers.verifier import ProgramLimits

Share = Callable[..., float | None]
Shares = Callable[..., list[float | None]]


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


@pytest.fixture
def shares(sandboxes: SandboxedTests) -> Shares:
    """The shares of tests that programs pass, side by side: pairs of a program and a ground truth, or its fields."""

    def of(*pairs: tuple[str, Any]) -> list[float | None]:
        texts = [(program, truth if isinstance(truth, str) else json.dumps(truth)) for program, truth in pairs]
        return sandboxes.shares(texts, fractions=True)

    return of
