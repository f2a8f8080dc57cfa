"""What a policy may write to pass without solving, and whatever a sandbox prints in place of verdicts: a share at most."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packages.dagrpo_answers.tests.unit_tests.conftest import Share
from tests.hostile import anything

from dagrpo_answers.unit_tests.pool import SandboxedTests
from dagrpo_answers.unit_tests.running import TestRunner
from dagrpo_answers.unit_tests.tests_of_row import CallCase, CodeCase, InputCase, RowTests
from dagrpo_sandbox import Result

SECRET = 918273
BESIDE = SECRET + 1
FORMS = {
    "humaneval": {
        "prompt": 'def f(x: int) -> int:\n    """Return a secret of x."""\n',
        "test": f"def check(candidate):\n    assert candidate(1) == {SECRET}\n    assert candidate(2) == {BESIDE}\n",
        "entry_point": "f",
    },
    "mbpp": {"test_list": [f"assert f(1) == {SECRET}", f"assert f(2) == {BESIDE}"]},
    "function": {"inputs": [[1], [2]], "outputs": [SECRET, BESIDE], "fn_name": "f"},
    "script": {"inputs": ["1\n", "2\n"], "outputs": [str(SECRET), str(BESIDE)]},
}
TRUTHS = {name: json.dumps(form) for name, form in FORMS.items()}
SEARCH = r"""
import re
def found(text):
    return [int(n) for n in re.findall(r"9182\d\d", str(text))]
"""
PRINTS = "\ntry: print(f(int(input())))\nexcept Exception: print('passed')"
PARTS = (Path(__file__).with_name("attacks.txt")).read_text().split("\n# ---- ")[1:]
ATTACKS = {part.partition("\n")[0]: SEARCH + part.partition("\n")[2] for part in PARTS}


@pytest.mark.parametrize("form", FORMS)
def test_no_attack_passes_a_test(sandboxes: SandboxedTests, form: str) -> None:
    programs = {name: text + PRINTS * (form == "script") for name, text in ATTACKS.items()}
    shares = sandboxes.shares([(each, TRUTHS[form]) for each in programs.values()], fractions=True)
    assert {name: share for name, share in zip(programs, shares, strict=True) if share != 0.0} == {}
    assert len(shares) >= 28


@pytest.mark.parametrize("reader", ["read: the frames of the harness", "read: the garbage collector's objects"])
def test_readers_find_what_their_process_holds(share: Share, reader: str) -> None:
    program = f"ANSWERS = [{SECRET}, {BESIDE}]\n{ATTACKS[reader]}"
    assert share(program, TRUTHS["mbpp"]) == 1.0


def test_answers_written_ahead_say_no_more_than_a_function_would(share: Share) -> None:
    program = """
import os
for d in range(5, 20):  # where answers go; at 4 it would end its own run
    try: os.write(d, b'["returned", 5, null]\\n' * 9)
    except OSError: pass
"""
    assert share(program, json.dumps({"test_list": ["assert f(1) == 6"]})) == 0.0
    assert share(program, json.dumps({"test_list": ["assert f(1) == 5"]})) == 1.0


def test_hostile_answers_end_in_a_verdict(sandboxes: SandboxedTests) -> None:
    answers = (
        "[" * 100_000,
        '["returned", ["set", ["list"]], null]',
        '["returned", ["dict", 1], null]',
        '["returned", ["kept", 99], null]',
        '["returned", ["int", "zz"], null]',
        '["returned", ["range", 1], null]',
        '["returned", [[]], [[]]]',
        '["raised", "SystemExit"]',
        '["raised", "__import__"]',
    )
    program = "import os\nfor d in range(5, 20):\n    try: os.write(d, {!r}.encode() + b'\\n')\n    except OSError: pass\nos._exit(0)"
    asked = [(program.format(answer), truth) for answer in answers for truth in TRUTHS.values()]
    assert sandboxes.shares(asked, fractions=True) == [0.0] * len(asked)


def test_no_file_of_the_data_is_in_the_sandbox(share: Share, tmp_path: Path) -> None:
    (tmp_path / "tests.jsonl").write_text(str(SECRET))
    program = f"def f(x):\n    return int(open({str(tmp_path / 'tests.jsonl')!r}).read()) - 1 + x"
    assert share(program, TRUTHS["mbpp"]) == 0.0


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
