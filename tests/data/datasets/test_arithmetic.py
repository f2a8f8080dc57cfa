"""The generated problems: right, distinct, reproducible, and shared out over the levels."""

import re
from collections import Counter

import pytest

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.datasets.arithmetic import KINDS, Config, Level, load
from dagrpo.data.task import TaskRows
from dagrpo_answers.verifiers.gsm8k import extract


def _load(train: int, test: int, *levels: Level, seed: int = 0) -> TaskRows:
    return load(Data(arithmetic=Config(train=train, test=test, levels=list(levels), seed=seed)))


def _identity(row: Row) -> tuple[int, ...]:
    """The signed terms without their order: 12+34 and 34+12 are the same problem."""
    signed = row.question.removesuffix("=?").replace("-", "+-").split("+")
    return tuple(sorted(int(term) for term in signed))


@pytest.fixture(scope="module")
def default() -> TaskRows:
    return load(Data())


def test_every_answer_is_the_value_of_its_expression(default: TaskRows) -> None:
    for row in (*default.splits["train"], *default.splits["test"]):
        assert int(row.ground_truth) == sum(_identity(row))
        assert extract(row.answer, "strict") == extract(row.answer, "flexible") == row.ground_truth
        worked = row.answer.partition("\n")[0]  # such as 80+12 or -10-1
        assert sum(int(part) for part in re.findall(r"[+-]?\d+", worked)) == int(row.ground_truth)


def test_no_problem_occurs_twice_in_any_order_of_its_terms(default: TaskRows) -> None:
    train, test = ([_identity(e) for e in default.splits[split]] for split in ("train", "test"))
    assert len(set(train) | set(test)) == len(train) + len(test) == 4500
    assert not set(train) & set(test)


def test_the_levels_are_equal_as_far_as_they_have_problems(default: TaskRows) -> None:
    train, test = (Counter(e.ability for e in default.splits[split]) for split in ("train", "test"))
    # all 55 and all 220 there are, (4500 - 275) / 2 of the other levels; a ninth of each level is for test
    assert train == {"sum_1_digit": 49, "sum_3_terms": 196, "sum_2_digit": 1877, "difference_2_digit": 1878}
    assert test == {"sum_1_digit": 6, "sum_3_terms": 24, "sum_2_digit": 235, "difference_2_digit": 235}


def test_each_level_looks_as_its_name_says(default: TaskRows) -> None:
    for row in default.splits["train"]:
        kind = KINDS[row.ability]  # type: ignore[index]
        terms = _identity(row)
        assert len(terms) == kind.terms
        assert all(len(str(abs(term))) == kind.digits for term in terms)
        assert sum(term < 0 for term in terms) == (1 if kind.operator == "-" else 0)


@pytest.mark.parametrize(
    ("level", "distinct"), [("sum_1_digit", 55), pytest.param("sum_2_digit", 4095, marks=pytest.mark.nightly)]
)
def test_a_level_can_be_used_to_its_last_problem(level: Level, distinct: int) -> None:
    assert KINDS[level].distinct() == distinct
    problems = _load(distinct - 5, 5, level)
    assert len({_identity(e) for split in problems.splits.values() for e in split}) == distinct


def test_more_problems_than_there_are_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"asks for 60 problems .* hold only 55 distinct ones: lower train or test, or add a level"
    ):
        _load(50, 10, "sum_1_digit")


def test_the_first_problems_stay_what_they_are() -> None:
    assert [(e.question, e.answer) for e in _load(2, 1, "sum_2_digit").splits["train"]] == [
        ("13+62=?", "70+5\n#### 75"),
        ("48+44=?", "80+12\n#### 92"),
    ]
