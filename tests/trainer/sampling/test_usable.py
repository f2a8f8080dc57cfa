from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.trainer.attempts import attempt, written

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.rollout.sampling import Sampling
from dagrpo.trainer.sampling.usable import (
    FIRST_STEPS,
    require_calls,
    require_no_impossible_group,
    require_usable,
)

SAMPLING = Sampling(samples=4, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=8, lockstep=True)


def _trajectory(row: int, seed: int, tokens: Sequence[int] = (8,), logprob: float = -1.0) -> Trajectory:
    return attempt(row, written(tokens, logprob=logprob), sampling_seed=seed)


def test_a_group_of_identical_completions_that_chance_makes_too_rarely_is_refused() -> None:
    # Three more like the first, whose two tokens have the logprobs -2.5 each: 3 * -5 = -15 nats, 10^-6.51 of all groups.
    group = [_trajectory(3, seed, (7, 8), -2.5) for seed in range(4)]
    with pytest.raises(UserError, match=r"step 2: all 4 samples at problem 3 .* same 2 tokens, .* once in 10\^7 times"):
        require_no_impossible_group(group, 4, SAMPLING, 1e-6, 2)
    require_no_impossible_group(group, 4, SAMPLING, 1e-7, 2)
    require_no_impossible_group(group, 4, SAMPLING, 0.0, 2)


def test_a_sure_policy_says_the_same_four_times_and_one_sample_that_differs_is_enough() -> None:
    require_no_impossible_group([_trajectory(3, seed, (7,) * 8, -0.01) for seed in range(4)], 4, SAMPLING, 1e-6, 2)
    group = [_trajectory(3, seed, (7, 8), -9.0) for seed in range(3)] + [_trajectory(3, 3, (7, 9), -9.0)]
    require_no_impossible_group(group, 4, SAMPLING, 1e-6, 2)


@pytest.mark.parametrize("sampling", [replace(SAMPLING, top_p=0.9), replace(SAMPLING, top_k=5)])
def test_where_the_distribution_is_cut_off_only_the_logprobs_of_what_is_left_tell_how_likely_a_group_is(
    sampling: Sampling,
) -> None:
    group = [_trajectory(3, seed, (7, 8), -9.0) for seed in range(4)]
    require_no_impossible_group(group, 4, sampling, 1e-6, 2)
    with pytest.raises(UserError, match="all 4 samples at problem 3"):
        require_no_impossible_group(group, 4, replace(sampling, support=True), 1e-6, 2)


def _of_row_17(**changes: Any) -> Trajectory:
    return attempt(17, written([8]), **changes)


def _excluded(fault: str) -> Trajectory:
    return _of_row_17(stop_reason="excluded", fault=fault)


def test_up_to_the_share_that_is_allowed_may_be_excluded_and_faults_of_more_are_told() -> None:
    require_usable([_excluded("no server"), *[_of_row_17()] * 9], 0.1, 3)
    require_usable([_of_row_17()], 0.0, 3)
    faults = ["no server", "search:\ntimed out", "no server", "", "one more"]
    most = r"'no server' \(2 times\); 'search: timed out' \(1 times\); 'no fault is named' \(1 times\)\."
    with pytest.raises(UserError, match=rf"step 3: 5 of 10 trajectories were excluded, .* allows 25%: {most}"):
        require_usable([*map(_excluded, faults), *[_of_row_17()] * 5], 0.25, 3)


def test_a_step_without_a_single_trajectory_to_learn_from_is_refused() -> None:
    nothing = _of_row_17(samples=(), stop_reason="max_tokens")
    with pytest.raises(UserError, match=r"step 3: there is nothing to learn from.*excluded, max_tokens"):
        require_usable([nothing, _excluded("no server")], 1.0, 3)
    require_usable([nothing, _of_row_17()], 0.0, 3)


def test_a_call_that_the_format_lost_names_the_row() -> None:
    with pytest.raises(UserError, match="step 3: the chat format lost 2 tool calls in an attempt at problem 17"):
        require_usable([_of_row_17(), _of_row_17(dropped_calls=2)], 1.0, 3)


def test_tools_that_no_trajectory_has_called_in_the_first_steps_stop_the_run() -> None:
    require_calls([0.0] * (FIRST_STEPS - 1), ["calculator"], FIRST_STEPS - 1)
    require_calls([0.0, 0.25, *[0.0] * 7], ["calculator"], 9)
    require_calls([0.0] * 9, [], 9)
    with pytest.raises(UserError, match=r"step 5: the task offers tools \(calculator, search\)"):
        require_calls([0.0] * 5, ["calculator", "search"], 5)
    with pytest.raises(UserError, match=r"step 40: the task maths offers tools \(calculator\)"):
        require_calls([0.0] * 5, ["calculator"], 40, "maths")
