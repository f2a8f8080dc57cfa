"""Tests run in the sandbox.

A program and what is expected of it are never in one process. What a script prints and a function returns is compared here. Tests that
are code run in a separate process: a stand-in for the program asks for its answers, and gets them as data.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Awaitable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from dagrpo_answers.unit_tests import plain, program_side, test_side
from dagrpo_answers.unit_tests.plain import NotPlain, encoded, read_lines
from dagrpo_answers.unit_tests.tests_of_row import IMPORTS, CallCase, CodeCase, InputCase, RowTests
from dagrpo_sandbox import Result

ROUNDS = 32  # of calls that depend on the results of others, in tests that are code
WAITING = 4  # times its processor time a program may take on the clock
TEST_SECONDS, TEST_MB = 10.0, 512  # for the tests' own code
MOST_REMEMBERED = 1 << 14  # tests with the calls that they make first
UNSAID: Mapping[str, Any] = {"passed": False}  # by tests that did not end in time, or said something else
LONGEST_NUMBER = 400  # characters
TOLERANCE = 1e-6  # between decimal numbers, relative and absolute


class Run(Protocol):
    """Sandbox that runs a program within seconds of the clock."""

    def __call__(self, program: str, *, seconds: float) -> Awaitable[Result]:
        """Return its result. Raises SandboxUnavailable."""


class Stopped(Exception):
    """End of a row's tests: a program that took too long for one is not asked for the others."""


def _text_of(*modules: ModuleType) -> str:
    """Return the program of one side, without imports of the package, which is not in the sandbox."""
    lines = [line for module in modules for line in inspect.getsource(module).splitlines()]
    return "\n".join(line for line in lines if not line.startswith("from dagrpo_answers."))


PROGRAM_SIDE, TEST_SIDE = _text_of(plain, program_side), _text_of(plain, test_side)


def _calling(side: str, function: str, *arguments: Any) -> str:
    return f"{side}\n{function}(*json.loads({json.dumps(arguments)!r}))\n"


class TestRunner:
    """Runner of the tests of rows."""

    __test__ = False  # for pytest

    def __init__(self, run: Run, seconds: float, memory_mb: int) -> None:
        self._run = run
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._first_calls: dict[CodeCase, asyncio.Task[Mapping[str, Any]]] = {}

    async def share(self, answer: str, tests: RowTests, *, fraction: bool) -> float | None:
        """Return the share of the tests that an answer passes; None if they call it with what is no data.

        Without `fraction` it is 0 from the first failure on. After a test for which it takes too long, the others are not run.
        """
        program, passed = tests.program(answer), 0
        for case in tests.cases:
            try:
                right = await self._passes(program, case, tests)
            except Stopped:
                break
            if right is None:
                return None
            passed += right
            if not right and not fraction:
                return 0.0
        return passed / len(tests.cases) if fraction or passed == len(tests.cases) else 0.0

    async def _passes(self, program: str, case: InputCase | CallCase | CodeCase, tests: RowTests) -> bool | None:
        limits = self._limits(tests)
        if isinstance(case, InputCase):
            job = _calling(PROGRAM_SIDE, "run_with_input", tests.language, program, case.input, *limits)
            result = await self._result(job, limits[0])
            return result.status == "ok" and same_output(result.stdout, case.output)
        if isinstance(case, CallCase):
            call = ["call", case.function, [_encoded_json(each) for each in case.arguments], {}]
            return _returns((await self._answers(program, [call], limits, IMPORTS))[0], case.expected)
        return await self._passes_code(program, case, limits)

    async def _passes_code(self, program: str, case: CodeCase, limits: tuple[int, int]) -> bool | None:
        calls: list[Any] = []
        answers: list[Any] = []
        said = await self._first(case)
        for _ in range(ROUNDS):
            if "calls" not in said:
                return None if "unsupported" in said else bool(said.get("passed"))
            calls = said["calls"]
            answers = await self._answers(program, calls, limits)
            said = await self._checked(case, calls, answers)
            if said == UNSAID:  # what the program answered keeps the tests busy
                raise Stopped
        return None  # more calls that wait for one another than ROUNDS

    async def _first(self, case: CodeCase) -> Mapping[str, Any]:
        """Return the calls that the tests make before they have an answer: the same for all programs."""
        if case not in self._first_calls:
            if len(self._first_calls) >= MOST_REMEMBERED:
                self._first_calls.clear()
            self._first_calls[case] = asyncio.create_task(self._checked(case, [], []))
        said = await self._first_calls[case]
        if not said.get("passed", True) and "why" not in said:
            self._first_calls.pop(case, None)  # the tests did not end in time: once more for the next program
        return said

    async def _checked(self, case: CodeCase, calls: Sequence[Any], answers: Sequence[Any]) -> Mapping[str, Any]:
        """Return the last line of the tests' side."""
        fields = {"code": case.code, "prompt": case.prompt, "names": case.names}
        job = _calling(TEST_SIDE, "check", fields, calls, answers, math.ceil(TEST_SECONDS), TEST_MB)
        lines = read_lines((await self._run(job, seconds=WAITING * TEST_SECONDS)).stdout)
        said = lines[-1] if lines else UNSAID
        return said if isinstance(said, dict) and isinstance(said.get("calls", []), list) else UNSAID

    async def _answers(
        self, program: str, calls: Sequence[Any], limits: tuple[int, int], imports: str = ""
    ) -> list[Any]:
        """Return an answer for each call, from a separate process of the program."""
        result = await self._result(_calling(PROGRAM_SIDE, "answer_calls", imports, program, calls, *limits), limits[0])
        answers = [each for each in read_lines(result.stdout) if _is_answer(each)][: len(calls)]
        return answers + [["ended"]] * (len(calls) - len(answers))

    async def _result(self, job: str, seconds: int) -> Result:
        result = await self._run(job, seconds=WAITING * seconds)
        if result.status == "timed_out":
            raise Stopped
        return result

    def _limits(self, tests: RowTests) -> tuple[int, int]:
        """Return whole seconds of processor time, and MiB."""
        return math.ceil(tests.seconds or self._seconds), min(tests.memory_mb or self._memory_mb, self._memory_mb)


def _is_answer(line: Any) -> bool:
    match line:
        case ["raised", str()] | ["returned", _, None | list()]:
            return True
    return False


def _encoded_json(value: Any) -> Any:
    """Return a value of JSON as an argument; whole numbers as the keys of an object are numbers, as verl has them."""
    if isinstance(value, dict):
        keys = [int(key) if len(key) <= LONGEST_NUMBER and key.removeprefix("-").isdecimal() else key for key in value]
        value = dict(zip(keys, value.values(), strict=True))
    return encoded(value)


def _returns(answer: Any, expected: Any) -> bool:
    """Return True if a call returned what is expected, or the one element of a list that holds it, as APPS writes results."""
    if answer[0] != "returned":
        return False
    try:
        value = _as_json(answer[1])
        alone = isinstance(expected, list) and len(expected) == 1 and _same(value, expected[0])
        return alone or _same(value, expected)
    except (NotPlain, RecursionError, ArithmeticError, ValueError):  # such as a number that no float holds
        return False


def _as_json(value: Any) -> Any:
    """Return an encoded result as JSON, keys as texts: no hash of a number that the program chose. Raises NotPlain for other values."""
    match value:
        case ["list" | "tuple", *parts]:
            return [*map(_as_json, parts)]
        case ["dict", *parts]:
            return {str(_as_json(key)): _as_json(each) for key, each in zip(parts[::2], parts[1::2], strict=True)}
        case ["int", str(digits)]:
            return int(digits, 16)
        case list() | dict():
            raise NotPlain("no JSON")
    return value


def _same(value: Any, expected: Any) -> bool:
    """Return True if values are equal; tuples are lists, decimal numbers may differ by TOLERANCE."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_same(value[key], expected[key]) for key in expected)
    if type(expected) in (int, float) and type(value) in (int, float) and float in (type(value), type(expected)):
        return _close(float(value), float(expected))
    return type(value) is type(expected) and bool(value == expected)


def same_output(printed: str, expected: str) -> bool:
    """Return True if two outputs have the same words on the same lines, without empty lines at the end.

    Where a decimal number is expected, another number may differ from it by TOLERANCE.
    """
    lines, others = ([line.split() for line in text.rstrip().splitlines()] for text in (printed, expected))
    if lines == others:
        return True
    return [len(line) for line in lines] == [len(line) for line in others] and all(
        _same_word(word, other)
        for line, wanted in zip(lines, others, strict=True)
        for word, other in zip(line, wanted, strict=True)
    )


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    try:
        return (
            "." in expected
            and "_" not in word + expected
            and len(word) <= LONGEST_NUMBER
            and _close(float(word), float(expected))
        )
    except ValueError:
        return False


def _close(number: float, expected: float) -> bool:
    return number == expected or math.isclose(number, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
