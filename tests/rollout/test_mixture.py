"""Mixtures of tasks: exact counts where they divide, and an error below one prompt of each task everywhere else."""

from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.rollout.mixture import Mixture, evenly_ordered, in_proportion, spread_evenly

TASKS = ("a", "b", "c", "d", "e")
SHARES = st.lists(
    st.one_of(st.integers(1, 1000), st.floats(0.001, 1.0).map(lambda share: round(share, 3))), min_size=1, max_size=5
)


def mixture(shares: list[float], batch: int) -> Mixture:
    named = dict(zip(TASKS, shares, strict=False))
    return Mixture(dict.fromkeys(named, 7), named, batch)


@pytest.mark.parametrize(
    ("weights", "order"),
    [
        ([5, 3, 2], "abacababac"),  # each in time: a by 2, 4, 6, 8 and 10, b by 4, 7 and 10, c by 5 and 10
        ([1, 1], "abababab"),
        ([2, 1], "aabaabaab"),
        ([1, 3], "bbabbbab"),
        ([4, 0, 1], "aaaacaaaac"),
    ],
)
def test_the_order_is_this_one(weights: list[int], order: str) -> None:
    assert "".join("abcde"[place] for place in islice(in_proportion(weights), len(order))) == order


def test_counts_are_exact_where_they_divide_and_alternate_where_they_do_not() -> None:
    assert [mixture([0.5, 0.3, 0.2], 10).counts(step) for step in (0, 1, 99)] == [{"a": 5, "b": 3, "c": 2}] * 3
    halves = mixture([1, 1], 3)
    assert [halves.counts(step)["a"] for step in range(6)] == [2, 1, 2, 1, 2, 1]
    seldom = mixture([0.9, 0.1], 4)
    assert [seldom.counts(step)["b"] for step in range(10)] == [0, 0, 1, 0, 1] * 2
    by_size = Mixture({"a": 30, "b": 10}, {}, 8)
    assert by_size.counts(3) == {"a": 6, "b": 2}
    assert mixture([7.5], 4).counts(5) == {"a": 4}


@given(shares=SHARES, batch=st.integers(1, 64), step=st.integers(0, 200))
def test_no_task_is_a_whole_prompt_from_its_share_after_any_step(shares: list[float], batch: int, step: int) -> None:
    mixed, total = mixture(shares, batch), sum(Fraction(str(share)) for share in shares)
    before, counts, after = mixed.before(step), mixed.counts(step), mixed.before(step + 1)
    assert sum(counts.values()) == batch
    for task, share in zip(TASKS, shares, strict=False):
        exact = Fraction(str(share)) / total
        assert abs(before[task] - exact * batch * step) < 1
        assert counts[task] == after[task] - before[task] >= 0
        if (exact * batch).denominator == 1:
            assert counts[task] == exact * batch


@given(weights=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any))
def test_every_part_of_the_order_has_its_share_to_less_than_one(weights: list[int]) -> None:
    times = [0] * len(weights)
    for number, place in enumerate(islice(in_proportion(weights), 2 * sum(weights)), start=1):
        times[place] += 1
        assert all(
            abs(count - Fraction(weight * number, sum(weights))) < 1
            for count, weight in zip(times, weights, strict=True)
        )
    assert times == [2 * weight for weight in weights]


@given(shares=SHARES, batch=st.integers(1, 16), steps=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_a_step_has_the_counts_that_it_has_after_all_others(shares: list[float], batch: int, steps: list[int]) -> None:
    in_turn = mixture(shares, batch)
    known = [in_turn.counts(step) for step in range(max(steps) + 1)]
    resumed = mixture(shares, batch)
    assert [resumed.counts(step) for step in steps] == [known[step] for step in steps]


@given(whole=st.lists(st.integers(1, 1000), min_size=2, max_size=5), batch=st.integers(1, 64), step=st.integers(0, 50))
def test_shares_with_the_sum_1_are_those_of_the_numbers_that_they_come_from(
    whole: list[int], batch: int, step: int
) -> None:
    of_one = mixture([number / sum(whole) for number in whole], batch)
    assert of_one.before(step) == mixture([*map(float, whole)], batch).before(step)


def test_places_are_ordered_so_that_each_part_has_the_same_mixture() -> None:
    assert spread_evenly({"b": 2, "a": 4, "c": 0}) == [*"aabaab"]
    assert evenly_ordered([*"bbaaaa"]) == [2, 3, 0, 4, 5, 1]
    assert evenly_ordered([*"aaa"]) == [0, 1, 2]
