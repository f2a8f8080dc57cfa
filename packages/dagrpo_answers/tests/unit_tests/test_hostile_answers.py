"""Whatever a sandbox prints in place of answers and verdicts, a row's tests end with a share."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hostile import anything

from dagrpo_answers.unit_tests.running import TestRunner
from dagrpo_answers.unit_tests.tests_of_row import CallCase, CodeCase, InputCase, RowTests
from dagrpo_sandbox import Result

CASES = (
    InputCase(input="1", output="1.0"),
    CallCase(function="f", arguments=[1], expected=[1]),
    CodeCase(code="assert f(1) == 1", prompt="", names=("f",)),
)


def _share(program_says: str, tests_say: str, case: InputCase | CallCase | CodeCase) -> float | None:
    async def run(program: str, *, seconds: float) -> Result:
        asked = program.rpartition("\n")[0].rpartition("\n")[2]
        return Result(stdout=tests_say if asked.startswith("check(") else program_says, status="ok", seconds=0.1)

    return asyncio.run(TestRunner(run, 1.0, 64).share("```python\nf = 1\n```", RowTests(cases=(case,)), fraction=True))


def _nested(levels: int) -> str:
    return "[" * levels + "]" * levels


HOSTILE = [
    *(f'["returned", {_nested(levels)}, null]' for levels in (190, 250, 490, 981, 985, 3000)),
    '["returned", ' + '["list", ' * 400 + "1" + "]" * 400 + ", null]",
    '["returned", ' + '["dict", 1, ' * 195 + "1" + "]" * 195 + ", null]",
    '["returned", ["dict", 1], null]',
    '["returned", ["int", "0x"], null]',
    '["returned", ["int", "' + "f" * 100_000 + '"], null]',
    '["returned", 1e999, [NaN]]',
    '["returned", "\\ud800", null]',
    '["raised", "\\ud800"]',
    '{"a": ' * 500 + "1" + "}" * 500,
    "1" * 5000,
]
WORDS = [
    "7",
    "[]",
    "null",
    '"calls"',
    '["calls"]',
    '{"calls": 3}',
    '{"calls": null}',
    '{"calls": ["x"]}',
    '{"passed": []}',
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
@pytest.mark.parametrize("says", [*HOSTILE, *WORDS], ids=lambda text: text[:40])
def test_a_hostile_line_of_either_side_is_no_error(says: str, case: InputCase | CallCase | CodeCase) -> None:
    for tests_say in ('{"calls": [["call", "f", [1], {}]]}', says):
        assert _share(says, tests_say, case) in (0.0, 1.0, None)


@settings(max_examples=60, deadline=None)
@given(anything, anything, st.sampled_from(CASES))
def test_any_json_of_either_side_is_no_error(
    program: object, tests: object, case: InputCase | CallCase | CodeCase
) -> None:
    says = json.dumps(["returned", program, None])
    assert _share(says, json.dumps(tests), case) in (0.0, 1.0, None)
    assert _share(says, json.dumps({"calls": tests}), case) in (0.0, 1.0, None)


def test_tests_that_an_answer_keeps_busy_are_the_last_of_their_row() -> None:
    asked = []

    async def run(program: str, *, seconds: float) -> Result:
        asked.append(program)
        is_first = "check(" in program.rpartition("\n")[0].rpartition("\n")[2] and len(asked) <= 1
        said = '{"calls": [["call", "f", [1], {}]]}' if is_first else '["returned", 1, null]' if len(asked) == 2 else ""
        return Result(stdout=said, status="ok", seconds=0.1)

    tests = RowTests(cases=tuple(CodeCase(code=f"assert f({n})", prompt="", names=("f",)) for n in range(50)))
    assert asyncio.run(TestRunner(run, 1.0, 64).share("x", tests, fraction=True)) == 0.0
    assert len(asked) == 3


def test_no_depth_is_read_that_cannot_be_sent_on() -> None:
    for levels in range(800, 1000):
        for value in (f"[{_nested(levels)}, 1]", '{"a": ' * levels + "1" + "}" * levels):
            says = f'["returned", {value}, null]'
            assert _share(says, '{"calls": [["call", "f", [1], {}]]}', CASES[2]) in (0.0, None)
