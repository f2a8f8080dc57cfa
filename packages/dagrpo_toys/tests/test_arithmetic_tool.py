"""Products and sums: right, of fixed width, distinct, and a share of them demonstrates what the calculator answers."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.task import TaskRows, get_task
from dagrpo.tools.calculator import calculate
from dagrpo_answers.verifiers.gsm8k import extract
from dagrpo_toys.arithmetic_tool import Config

FORMS = {"product_3_digit": r"\d{3}\*\d{3}=", "sum_5_digit": r"\d{5}\+\d{5}="}


def _load(task: str = "arithmetic_tool", **wanted: float) -> TaskRows:
    return get_task(task).load(Data(arithmetic_tool=Config.model_validate({"train": 600, "test": 100, **wanted})))


@pytest.fixture(scope="module")
def problems() -> TaskRows:
    return _load()


def _every(problems: TaskRows) -> list[Row]:
    return [*problems.splits["train"], *problems.splits["test"]]


def test_every_ground_truth_is_what_the_calculator_answers(problems: TaskRows) -> None:
    for row in _every(problems):
        assert re.fullmatch(FORMS[row.ability], row.question)
        assert row.prompt == ({"role": "user", "content": row.question},)
        assert calculate(row.question.removesuffix("=")) == row.ground_truth
        assert extract(row.answer, "exact") == row.ground_truth


def test_no_problem_occurs_twice_in_any_order_of_its_numbers(problems: TaskRows) -> None:
    identities = Counter((e.ability, frozenset(re.findall(r"\d+", e.question))) for e in _every(problems))
    assert set(identities.values()) == {1}


def test_the_share_that_calls_does_so_with_the_expression_and_gives_the_result(problems: TaskRows) -> None:
    calling = [row for row in problems.splits["train"] if row.demonstration]
    assert len(calling) == 198
    assert {row.ability for row in calling} == set(FORMS)
    for row in calling:
        call, result, answer = row.demonstration
        (made,) = call["tool_calls"]
        arguments = {"expression": row.question.removesuffix("=")}
        assert made["function"] == {"name": "calculator", "arguments": arguments}
        assert (call["content"], answer["content"]) == ("", row.answer)
        assert result == {"role": "tool", "content": calculate(arguments["expression"])}
    assert not any(row.demonstration for row in problems.splits["test"])


def test_without_the_tool_the_problems_are_the_same_and_nothing_is_demonstrated(problems: TaskRows) -> None:
    alone = _load("arithmetic_alone")
    assert {row.task for row in _every(alone)} == {"arithmetic_alone"}
    assert [replace(e, task="arithmetic_tool", tools=("calculator",)) for e in _every(alone)] == [
        replace(e, demonstration=()) for e in _every(problems)
    ]


def test_more_problems_than_there_are_is_an_error_that_names_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.Random.randint", lambda self, low, high: low)
    with pytest.raises(UserError, match=r"data\.arithmetic_tool requests more distinct problems than exist \(1\)"):
        _load()
