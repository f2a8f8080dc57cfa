"""Which groups have spread, how many prompts a further round draws, and which groups make up a batch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.trainer import attempts

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rollout.early_stop import CutOff
from dagrpo.trainer.batches.rollouts import spread
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.dynamic_sampling import FullBatch, figures, has_spread, prompts_to_draw, used_groups


def training(**dynamic: Any) -> Training:
    return Training.model_validate({"prompts_per_step": 3, "samples_per_prompt": 2, "dynamic_sampling": dynamic})


def groups(*rewards: tuple[float, float], correct: bool = False, tasks: str = "arithmetic") -> list[GradedTrajectory]:
    """Groups with these rewards; `tasks`: of all of them, or a letter for each."""
    of_groups = tasks if len(tasks) == len(rewards) else [tasks] * len(rewards)
    return [
        attempts.graded(index, sample, reward=reward, correct=correct, task=of_groups[index])
        for index, pair in enumerate(rewards)
        for sample, reward in enumerate(pair)
    ]


TASK = "arithmetic"
EQUAL, DIFFERENT = (0.5, 0.5), (0.0, 1.0)


def test_seven_rewards_of_0_3_are_equal_although_their_standard_deviation_is_not_0() -> None:
    rewards = np.full(7, 0.3, dtype=np.float32)
    assert rewards.std() > 0, "by the rounding of their mean"
    assert spread(rewards, [True] * 7, 7).tolist() == [False]


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("values", "learned", "size", "expected"),
    [
        ([0.0, 1.0, 0.0, 0.0, 1.0, 0.0], [1, 1, 1, 1, 1, 1], 3, [True, True]),
        ([0.0, 1.0, 0.0, 0.0, 1.0, 0.0], [1, 0, 1, 0, 1, 0], 3, [False, False]),
        ([0.0, 1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 0, 0, 0, 0], 3, [False, False]),
        # What is no number is not filtered away before the update sees it.
        ([NAN, 0.0, NAN, NAN], [1, 1, 1, 1], 2, [True, True]),
        ([NAN, 0.0, 0.0], [0, 1, 1], 3, [False]),
        ([INF, INF, -INF, -INF], [1, 1, 1, 1], 2, [True, True]),
        ([INF, INF, 0.0, 0.0], [0, 0, 1, 1], 2, [False, False]),
    ],
)
def test_two_trajectories_that_are_learned_from_make_a_spread(
    values: list[float], learned: list[int], size: int, expected: list[bool]
) -> None:
    assert spread(values, [*map(bool, learned)], size).tolist() == expected


def test_groups_differ_in_reward_or_in_accuracy() -> None:
    by_length = groups(DIFFERENT)
    one_is_right = [by_length[0], replace(by_length[1], score=replace(by_length[1].score, verdict="right", reward=0.0))]
    assert has_spread(by_length, training()).tolist() == [True]
    assert has_spread(by_length, training(spread_of="accuracy")).tolist() == [False]
    assert has_spread(one_is_right, training()).tolist() == [False]
    assert has_spread(one_is_right, training(spread_of="accuracy")).tolist() == [True]


@pytest.mark.parametrize(
    ("oversampling", "counts"),
    [(1.0, [3, 2, 0]), (1.5, [5, 3, 0]), (3.0, [9, 6, 0])],  # 3 are missing; then 3 - 1 = 2; then none
)
def test_a_round_draws_what_is_missing_times_the_oversampling_rounded_up(
    oversampling: float, counts: list[int]
) -> None:
    settings = training(max_rounds=3, oversampling=oversampling)
    before = [[], groups(EQUAL, DIFFERENT, EQUAL), groups(*[DIFFERENT] * 4)]
    assert [prompts_to_draw(attempted, settings, {TASK: 3})[TASK] for attempted in before] == counts


@pytest.mark.parametrize(
    ("drawn", "used"),
    [
        ([DIFFERENT, EQUAL, DIFFERENT, EQUAL, DIFFERENT, DIFFERENT], [True, False, True, False, True, False]),
        ([EQUAL, EQUAL, EQUAL, DIFFERENT], [True, True, False, True]),
    ],
    ids=["the first three with spread", "filled with the first ones without"],
)
def test_a_batch_has_always_as_many_groups(drawn: list[tuple[float, float]], used: list[bool]) -> None:
    assert used_groups(groups(*drawn), training(max_rounds=2), 0, {TASK: 3}).tolist() == used


def test_each_task_of_a_mixture_fills_its_own_part_of_the_batch() -> None:
    """Of a, three are due and two found; of b, one is due and found twice; of c, one is due and none found."""
    found = groups(DIFFERENT, EQUAL, DIFFERENT, EQUAL, DIFFERENT, EQUAL, DIFFERENT, tasks="aaabbca")
    due, settings = {"a": 3, "b": 1, "c": 1}, training(max_rounds=2, oversampling=1.5)
    assert prompts_to_draw(found[:6], settings, due) == {"a": 2, "b": 2, "c": 2}  # one of each is missing
    assert prompts_to_draw(found, settings, due) == {"a": 0, "b": 0, "c": 2}
    # a at 0, 2 and 6, b its second, c one without spread.
    assert np.flatnonzero(used_groups(found, settings, 0, due)).tolist() == [0, 2, 4, 5, 6]
    missing = {"a": 1, "b": 0, "c": -1}
    full = FullBatch(missing, "aabc", lambda own: groups(*[DIFFERENT] * (len(own) // 2), tasks="a"), settings)
    assert [*map(full.has_enough, range(4))] == [False, False, True, True]
    full.judge(2, [each.trajectory for each in groups(DIFFERENT, tasks="b")])
    assert not full.has_enough(0), "another one of b is of no use"
    full.judge(1, [each.trajectory for each in groups(DIFFERENT, tasks="a")])
    assert full.has_enough(0)


def test_a_step_without_any_spread_goes_on_only_where_no_more_was_asked_for() -> None:
    nothing = groups(EQUAL, EQUAL, EQUAL)
    assert used_groups(nothing, training(), 4, {TASK: 3}).tolist() == [True] * 3
    with pytest.raises(UserError, match=r"step 5: in none of 3 groups do samples differ in reward, .*max_rounds is 2"):
        used_groups(nothing, training(max_rounds=2), 4, {TASK: 3})


def test_only_what_can_change_is_a_figure() -> None:
    used = np.array([True, False, True, True])
    nothing: list[CutOff] = []
    assert figures(used, 2, 5, nothing, training()) == {}
    assert figures(used, 2, 5, nothing, training(max_rounds=2)) == {
        "rollout/rounds": 2.0,
        "rollout/discarded_groups": 1.0,
        "rollout/discarded_fraction": 0.25,
    }
    retiring = training().model_copy(update={"retire_at": 0.9})
    assert figures(used, 1, 5, nothing, retiring) == {"rollout/retired_prompts": 5.0}
    cutting = training(oversampling=2.0, max_aborts=1)
    found = figures(used, 1, 5, [CutOff(positions=(1,), tokens=10), CutOff(positions=(0, 4), tokens=20)], cutting)
    assert (found["rollout/cut_off_groups"], found["rollout/cut_off_tokens"]) == (3.0, 30.0)
