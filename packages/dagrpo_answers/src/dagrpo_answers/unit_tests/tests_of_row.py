"""Tests of one row, parsed from its ground truth.

The ground truth is a JSON object in one of three forms: HumanEval's (prompt, test, entry_point), MBPP's (test_list, test_setup_code), and
that of Codeforces, TACO and APPS in verl's prime_code (inputs, outputs, fn_name). Beside each may stand `language` (python or bash),
`seconds` and `memory_mb`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from dagrpo_answers.errors import UserError
from dagrpo_answers.unit_tests.plain import DEEPEST, levels_of

Language = Literal["python", "bash"]
FORMS = "HumanEval (prompt, test, entry_point), MBPP (test_list) or prime_code (inputs, outputs, fn_name)"
MOST_SECONDS, LEAST_MB, MOST_MB = 600, 64, 1 << 20
MOST_DIGITS = 100_000  # of a whole number; its parsing takes quadratic time

# What answers in LeetCode's form take for granted, as in verl's prime_code and LiveCodeBench; a later module's names shadow an earlier's.
MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
IMPORTS = (
    "\n".join(f"from {name} import *" for name in (*MODULES, "builtins", "typing")) + f"\nimport {', '.join(MODULES)}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCase:
    """Test of a script: what it prints for an input."""

    input: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """Test of a function: what it returns for arguments."""

    function: str
    arguments: Sequence[Any]  # values of JSON
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCase:
    """Test that is code: it calls functions of the program, and raises if one is wrong."""

    code: str
    prompt: str = ""  # what the code may use beside the program
    names: tuple[str, ...] = ()  # what the prompt declares and the program defines


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTests:
    """Tests of one row."""

    cases: Sequence[InputCase | CallCase | CodeCase]
    prompt: str = ""  # code that stands before the program
    language: Language = "python"
    seconds: float | None = None  # of processor time, for each test; None: as the parameters say
    memory_mb: int | None = None

    def program(self, answer: str) -> str:
        """Return the program of an answer: the continuation of the prompt if its first line is indented, else code after it."""
        first = next((line for line in answer.splitlines() if line.strip()), "")
        between = "" if not self.prompt or first[:1] in (" ", "\t") else "\n"
        return f"{self.prompt}{between}{answer}\n"


@lru_cache(maxsize=1 << 12)
def read_tests(ground_truth: str) -> RowTests:
    """Return the tests that a ground truth states. Raises UserError if it states none."""
    try:
        fields = _parsed(ground_truth)
    except (ValueError, RecursionError):
        fields = None
    cases = _cases(fields) if isinstance(fields, dict) else None
    if not cases:
        raise UserError(
            f"{ground_truth[:60]!r} states no tests: write it as a JSON object in the form of {FORMS}, with at least one test."
        )
    return _with_limits(fields, cases)


def _whole(digits: str) -> int:
    """Return a whole number of any length that Python's own limit would refuse. Raises ValueError for one of more than MOST_DIGITS."""
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number is too long")
    return int(Decimal(digits))


def _parsed(text: str) -> Any:
    """Return the value of JSON. Raises ValueError or RecursionError for other texts, and for values beyond the limits."""
    value = json.loads(text, parse_int=_whole)
    if levels_of(value) > DEEPEST:
        raise ValueError("a value is too deep")
    return value


def _with_limits(fields: Mapping[str, Any], cases: Sequence[InputCase | CallCase | CodeCase]) -> RowTests:
    language, seconds, memory = fields.get("language", "python"), fields.get("seconds"), fields.get("memory_mb")
    if language not in ("python", "bash") or (language == "bash" and not isinstance(cases[0], InputCase)):
        raise UserError(
            f"tests of programs in {language!r} cannot be run: write python, or bash with inputs and outputs."
        )
    if seconds is not None and not (_is_number(seconds) and 0 < seconds <= MOST_SECONDS):
        raise UserError(f"seconds of the tests is {seconds!r}: write a number above 0, up to {MOST_SECONDS}.")
    if memory is not None and not (_is_number(memory) and LEAST_MB <= memory <= MOST_MB):
        raise UserError(f"memory_mb of the tests is {memory!r}: write a whole number from {LEAST_MB}.")
    return RowTests(
        cases=cases,
        prompt=fields.get("prompt") or "",
        language=language,
        seconds=None if seconds is None else float(seconds),
        memory_mb=None if memory is None else int(memory),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cases(fields: Mapping[str, Any]) -> Sequence[InputCase | CallCase | CodeCase] | None:
    match fields:
        case {"prompt": str(prompt), "test": str(test), "entry_point": str(name)} if name.isidentifier():
            return [CodeCase(code=f"{test}\ncheck({name})\n", prompt=prompt, names=(name,))]
        case {"test_list": [*tests]} if all(isinstance(each, str) for each in tests):
            setup = fields.get("test_setup_code") or ""
            return [CodeCase(code=f"{setup}\n{each}\n") for each in tests] if isinstance(setup, str) else None
        case {"inputs": [*inputs], "outputs": [*outputs]} if len(inputs) == len(outputs):
            function = fields.get("fn_name")
            pairs = list(zip(inputs, outputs, strict=True))
            return _scripts(pairs) if function is None else _calls(str(function), pairs)
    return None


def _scripts(pairs: Sequence[tuple[Any, Any]]) -> list[InputCase] | None:
    """Return the tests of a script; a list of lines is a text."""
    texts = [("\n".join(map(str, each)) if isinstance(each, list) else each) for pair in pairs for each in pair]
    if not all(isinstance(each, str) for each in texts):
        return None
    return [InputCase(input=each, output=output) for each, output in zip(texts[::2], texts[1::2], strict=True)]


def _calls(name: str, pairs: Sequence[tuple[Any, Any]]) -> list[CallCase] | None:
    """Return the tests of a function; a text holds JSON, its arguments on a line each."""
    try:
        cases = [
            CallCase(
                function=name,
                arguments=[_parsed(line) for line in given.split("\n")] if isinstance(given, str) else given,
                expected=_parsed(expected) if isinstance(expected, str) and isinstance(given, str) else expected,
            )
            for given, expected in pairs
        ]
    except (ValueError, RecursionError):
        return None
    return cases if all(isinstance(each.arguments, list) for each in cases) else None
