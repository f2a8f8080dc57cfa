"""The figures of turns and calls, computed by hand."""

from typing import Any

import pytest
import torch
from tests.trainer.attempts import attempt, scored, written

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import CallStatus, ToolCall
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.metrics.step import CALLED, turn_metrics, turn_timings


def _call(name: str, status: CallStatus, characters: int, seconds: float = 0.0) -> ToolCall:
    return ToolCall(turn=0, name=name, arguments="{}", status=status, result="r" * characters, seconds=seconds)


def _graded(*lengths: int, **changes: Any) -> GradedTrajectory:
    """Return an attempt with samples of so many tokens, the prompt's one included; by default one of four."""
    samples = [written(range(1, length)) for length in lengths or (4,)]
    return scored(attempt(0, *samples, **changes))


def _rollouts(*graded: GradedTrajectory, several_turns: bool = True) -> Rollouts:
    return Rollouts(
        step=0,
        group_size=2,
        graded=graded,
        rewards=torch.zeros(len(graded)),
        components={},
        several_turns=several_turns,
        functions=("calculator", "search"),
    )


STEP = _rollouts(
    _graded(
        4,
        8,
        turns=4,
        stop_reason="max_turns",
        calls=(_call("calculator", "ok", 4, 0.5), _call("calculator", "failed", 0, 1.5), _call("", "undecodable", 8)),
        cached_tokens=30,
        prompt_tokens=90,
    ),
    _graded(turns=1, calls=(_call("calculator", "ok", 4),), prompt_tokens=10),
    _graded(turns=1),
    _graded(turns=9, stop_reason="excluded", calls=(_call("search", "timed_out", 400, 4.0),)),
)


def test_turns_calls_and_reasons_to_stop_are_those_computed_by_hand() -> None:
    metrics = turn_metrics(STEP)
    found = {name: value for name, value in metrics.items() if value}
    assert found == {
        "rollout/turns_mean": 2.0,
        "rollout/turns_max": 4.0,
        "rollout/samples_mean": pytest.approx(4 / 3),
        "rollout/tokens_mean": pytest.approx(16 / 3),
        "rollout/tokens_max": 8.0,
        "rollout/excluded": 1.0,
        "rollout/left_out": 1.0,
        "rollout/stop_answered_fraction": 0.5,
        "rollout/stop_max_turns_fraction": 0.25,
        "rollout/stop_excluded_fraction": 0.25,
        "tool/calls_mean": pytest.approx(4 / 3),
        CALLED: pytest.approx(2 / 3),
        "tool/result_characters_mean": 4.0,
        "tool/ok_fraction": 0.5,
        "tool/failed_fraction": 0.25,
        "tool/undecodable_fraction": 0.25,
        "tool/calls_of_calculator": 3.0,
    }
    assert metrics["tool/calls_of_search"] == metrics["tool/timed_out_fraction"] == 0.0


def test_every_step_has_the_same_figures_whatever_happened_in_it() -> None:
    nothing = turn_metrics(_rollouts(_graded(samples=(), turns=0, stop_reason="seconds")))
    assert nothing.keys() == turn_metrics(STEP).keys()
    assert {name for name, value in nothing.items() if value} == {"rollout/left_out", "rollout/stop_seconds_fraction"}


def test_seconds_and_cached_tokens_are_no_part_of_the_result() -> None:
    assert turn_timings(STEP) == {
        "rollout/cached_tokens_fraction": 0.3,
        "tool/seconds_mean": pytest.approx(6.0 / 5),
        "tool/seconds_max": 4.0,
    }
    assert not turn_metrics(STEP).keys() & turn_timings(STEP).keys()


def test_a_run_of_single_turns_has_no_such_figures() -> None:
    single = _rollouts(_graded(), several_turns=False)
    assert turn_metrics(single) == turn_timings(single) == {}
