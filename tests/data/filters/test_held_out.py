"""A test split for what has none: chosen by the questions alone."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.filters.problems import left, sieve, task_rows

from dagrpo.data.filters.questions import hold_out
from dagrpo.data.filters.sieve import Sieve

QUESTIONS = [f"what is {number}" for number in range(40)]


def _held_out(questions: list[str], count: int) -> set[str]:
    found = Sieve({"train": task_rows(questions)})
    hold_out(found, count)
    return {problem.question for problem in found.splits["test"]}


def test_the_questions_with_the_smallest_hash_are_held_out_in_their_order() -> None:
    found = sieve(QUESTIONS)
    hold_out(found, 5)
    by_hash = sorted(range(40), key=lambda number: hashlib.sha256(f"what is {number}".encode()).hexdigest())
    assert left(found, "test") == sorted(by_hash[:5])
    assert left(found) == sorted(by_hash[5:])
    assert {problem.split for problem in found.splits["test"]} == {"test"}
    assert found.dropped == []


@given(st.integers(0, 1000))
def test_the_choice_does_not_depend_on_the_order(seed: int) -> None:
    shuffled = random.Random(seed).sample(QUESTIONS, len(QUESTIONS))
    assert _held_out(shuffled, 7) == _held_out(QUESTIONS, 7)


@given(st.sampled_from(["a new one", "another", "What, a third?"]))
def test_a_row_more_replaces_at_most_one_held_out_problem(added: str) -> None:
    before, after = _held_out(QUESTIONS, 7), _held_out([added, *QUESTIONS], 7)
    assert len(before - after) <= 1


def test_typing_does_not_move_a_problem_out_of_test() -> None:
    assert {q.upper() for q in _held_out(QUESTIONS, 7)} == _held_out([q.upper() for q in QUESTIONS], 7)


@pytest.mark.parametrize("count", [40, 41])
def test_something_must_be_left_to_train_on(count: int) -> None:
    with pytest.raises(
        ValueError, match=rf"^data.held_out is {count}, but only 40 problems are left .*lower data.held"
    ):
        hold_out(sieve(QUESTIONS), count)
