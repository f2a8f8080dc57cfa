"""Functions of one line: each demonstration passes its tests, but for those that lack their parentheses."""

import json

import pytest

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.rewards.verifiers import get_verifier
from dagrpo_toys.one_liners import Config, load, value


def _passes(row: Row) -> bool:
    program = get_verifier("unit_tests").extract(row.answer, "strict") or ""
    try:
        exec(program + json.loads(row.ground_truth)["test_list"][0], {})  # our own program, not a policy's
    except AssertionError:
        return False
    return True


def test_one_liners_are_distinct_and_their_answers_are_read() -> None:
    splits = load(Data()).splits
    rows = [*splits["train"], *splits["test"]]
    assert len({row.question for row in rows}) == len(rows) == 1700
    assert value((("add", 3), ("times", 2), ("square", 0), ("modulo", 7), ("negate", 0), ("subtract", 1)), 1) == -2
    assert all(map(_passes, rows[:50]))


def test_a_share_of_demonstrations_lacks_the_parentheses_and_no_test_problem_does() -> None:
    splits = load(Data(one_liners=Config(train=200, test=50, right_demonstrations=0.25))).splits
    assert all(map(_passes, splits["test"]))
    wrong = [row for row in splits["train"] if not _passes(row)]
    assert all("(" not in row.answer for row in wrong)
    assert len(wrong) / 150 == pytest.approx(0.45, abs=0.15), "without parentheses four programs in ten are others"
