"""Numbers by short programs: each program is right, fits into a call as it stands, and is run in the tests."""

import contextlib
import io
import json
import math
import re
from collections import Counter

import pytest

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.task import TaskRows
from dagrpo_answers.verifiers.gsm8k import extract
from dagrpo_toys.python_math import KINDS, Config, load


def _load(**wanted: float) -> TaskRows:
    return load(Data(python_math=Config.model_validate({"train": 240, "test": 30, **wanted})))


@pytest.fixture(scope="module")
def problems() -> TaskRows:
    return _load()


def _every(problems: TaskRows) -> list[Row]:
    return [*problems.splits["train"], *problems.splits["test"]]


def _program(row: Row) -> str:
    (call,) = row.demonstration[0]["tool_calls"]
    assert call["function"]["name"] == "code_interpreter"
    return str(call["function"]["arguments"]["code"])


def test_every_program_prints_the_ground_truth_and_the_interpreters_line_break() -> None:
    for row in _load(demonstrated_calls=1.0).splits["train"]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(_program(row), "program", "exec"), {})  # our own program, not a policy's
        assert printed.getvalue() == f"{row.ground_truth}\n"
        assert row.demonstration[1] == {"role": "tool", "content": printed.getvalue()}
        assert row.demonstration[2]["content"] == row.answer
        program = _program(row)  # one short line that JSON does not escape
        assert json.dumps(program) == f'"{program}"'
        assert len(program) < 80
        assert re.findall(r"\d{2,}", program) == re.findall(r"\d{2,}", row.question)


@pytest.mark.parametrize(
    ("level", "numbers", "value"),
    [
        ("digit_sum", (12, 2), 9),  # 144
        ("greatest_divisor", (5, 7, 10, 8), 6),  # 12 and 18
        ("primes", (101, 113), 5),  # 101, 103, 107, 109, 113
        ("primes", (114, 126), 0),
    ],
)
def test_values_by_hand(level: str, numbers: tuple[int, ...], value: int) -> None:
    assert KINDS[level].value(*numbers) == value


def test_kinds_stand_in_equal_parts_and_answers_are_read_and_seldom_one(problems: TaskRows) -> None:
    for row in _every(problems):
        assert extract(row.answer, "exact") == row.ground_truth
        if row.ability == "greatest_divisor":
            a, b, c, d = map(int, re.findall(r"\d+", row.question))
            assert all(1000 <= number <= 9999 for number in (a, b, c, d))
            assert math.gcd(a + b, c + d) == int(row.ground_truth) >= 11
    assert Counter(e.ability for e in problems.splits["train"]) == dict.fromkeys(KINDS, 80)
    assert Counter(e.ability for e in problems.splits["test"]) == dict.fromkeys(KINDS, 10)
    assert len({e.question for e in _every(problems)}) == 270
    assert sum(bool(e.demonstration) for e in problems.splits["train"]) == 120
    assert not any(e.demonstration for e in problems.splits["test"])
    assert _load() == problems
    assert {e.question for e in _every(_load(seed=1))} != {e.question for e in _every(problems)}


def test_as_many_problems_as_the_schema_allows_can_be_drawn() -> None:
    largest = _load(train=8000, test=2000, demonstrated_calls=0.0)
    assert {split: len(rows) for split, rows in largest.splits.items()} == {"train": 8000, "test": 2000}
