"""One table of rollouts: the columns of evaluation, and those that training adds."""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.rollout.problems import SINGLE_TURN, problem

from dagrpo.core.trajectory import GradedTrajectory, TokenSample, Trajectory
from dagrpo.core.types import Score, ToolCall
from dagrpo.rollout.build_table import discarded_table, rollout_table, training_table
from dagrpo.rollout.table import ROLLOUTS, TRAINING_ROLLOUTS, read_table
from dagrpo.utils.tables import write_parquet

SAMPLE = TokenSample(
    token_ids=(5, 13, 8, 9),
    loss_mask=(False, False, True, True),
    logprobs=(0.0, 0.0, -0.5, -0.25),
    weight_version="step_2",
)
TRAJECTORY = Trajectory(
    prompt=problem(3), sample_index=1, sampling_seed=77, samples=(SAMPLE,), text="#### 3", finish_reason="stop"
)
ROW = {
    "task": "arithmetic",
    "problem_index": 3,
    "sample_index": 1,
    "prompt": "p3",
    "completion": "#### 3",
    "prompt_ids": [5, 13],
    "completion_ids": [8, 9],
    "rollout_logprobs": [-0.5, -0.25],
    "weight_version": "step_2",
    "finish_reason": "stop",
    "ground_truth": "3",
    "verifier": "gsm8k",
    "question": "1+2=?",
    "sampling_seed": 77,
    **SINGLE_TURN,
}
SCORE = Score(
    extracted=None, reward=0.25, verdict="unverifiable", verifier="gsm8k", components={"format": 1.0, "accuracy": 0.0}
)


def test_a_row_tells_who_wrote_what_to_which_problem() -> None:
    table = rollout_table([TRAJECTORY])
    assert table.schema == ROLLOUTS
    assert table.to_pylist() == [ROW]


FORKED = TokenSample(
    token_ids=(5, 13, 8, 9, 4, 7),
    loss_mask=(False, False, False, False, False, True),
    logprobs=(0.0, 0.0, 0.0, 0.0, 0.0, -0.125),
    weight_version="step_3",
)
FORKED_CUT = replace(FORKED, support=(array("i", [7]),))


def test_all_turns_and_samples_of_a_trajectory_are_one_row() -> None:
    call = ToolCall(turn=0, name="calculator", arguments='{"e": "1"}', status="ok", result="1", seconds=0.5)
    several = replace(
        TRAJECTORY,
        samples=(SAMPLE, FORKED),
        turns=2,
        stop_reason="max_turns",
        messages=({"role": "tool", "content": "π"},),
        calls=(call,),
        reported={"b": 0.5, "a": 1.0},
        cached_tokens=3,
    )
    (row,) = rollout_table([several]).to_pylist()
    assert row == ROW | {
        "completion_ids": [8, 9, 7],
        "rollout_logprobs": [-0.5, -0.25, -0.125],
        "weight_version": "step_3",
        "turns": 2,
        "stop_reason": "max_turns",
        "messages": '[{"content":"π","role":"tool"}]',
        "calls": [{"turn": 0, "name": "calculator", "arguments": '{"e": "1"}', "status": "ok", "result": "1"}],
        "samples": [
            {"token_ids": [5, 13, 8, 9], "loss_mask": [False, False, True, True]},
            {"token_ids": [5, 13, 8, 9, 4, 7], "loss_mask": [False] * 5 + [True]},
        ],
        "reported": [("a", 1.0), ("b", 0.5)],
    }


def _trained(trajectory: Trajectory = TRAJECTORY, step: int = 1, **changes: Any) -> pa.Table:
    """A table of one trajectory that training has learned nothing from, unless `changes` say so."""
    graded = [GradedTrajectory(trajectory=trajectory, score=SCORE)]
    nothing: dict[str, Any] = {"rewards": [0.0], "advantages": [0.0], "token_advantages": [[]]}
    return training_table(step, graded, **nothing | {"trainer_logprobs": [[0.0] * trajectory.tokens]} | changes)


def test_training_adds_what_it_alone_knows_and_the_rest_can_be_read_as_rollouts(tmp_path: Path) -> None:
    table = _trained(
        step=4,
        rewards=[0.75],
        advantages=[-1.5],
        trainer_logprobs=[[-0.5, -0.125]],
        greedy_rewards=[0.25],
        teacher_logprobs=[[-1.5, -2.0]],
    )
    assert table.schema == TRAINING_ROLLOUTS
    (row,) = table.to_pylist()
    assert row == ROW | {
        "step": 4,
        "logprob_differences": [0.0, 0.125],
        "teacher_logprobs": [-1.5, -2.0],
        "extracted": None,
        "verdict": "unverifiable",
        "correct": None,
        "components": [("accuracy", 0.0), ("format", 1.0)],
        "reward": 0.75,  # what the policy learns from, which a control experiment permutes
        "advantage": -1.5,
        "token_advantages": [],
        "sampling_support": [],
        "discarded": False,
        "greedy_reward": 0.25,
        "earlier_versions": [],
        "completion_tokens": 2,
        "kept": "all",
    }
    write_parquet(tmp_path / "step.parquet", table)
    assert read_table(tmp_path / "step.parquet", ROLLOUTS).to_pylist() == [ROW]


def test_half_of_a_surrogate_pair_does_not_break_the_file(tmp_path: Path) -> None:
    broken = 'x\ud800y\udc00 😀 \x00"'
    hostile = replace(
        TRAJECTORY,
        text=broken,
        fault=broken,
        messages=({"role": "assistant", "content": broken}, {"role": "user", "content": "x"}),
        calls=(ToolCall(turn=0, name=broken, arguments=broken, status="undecodable", result=broken),),
        reported={broken: 1.0},
    )
    write_parquet(tmp_path / "r.parquet", rollout_table([hostile]))
    (row,) = read_table(tmp_path / "r.parquet", ROLLOUTS).to_pylist()
    stored = 'x\ufffdy\ufffd 😀 \x00"'
    assert row["completion"] == row["fault"] == row["calls"][0]["name"] == row["calls"][0]["result"] == stored
    assert json.loads(row["messages"])[0] == {"role": "assistant", "content": stored}
    assert row["reported"] == [(stored, 1.0)]


def test_what_tokens_were_drawn_from_is_kept_beside_them(tmp_path: Path) -> None:
    support = (array("i", [8, 11, 300]), array("i", [9]))
    write_parquet(
        tmp_path / "step.parquet",
        _trained(replace(TRAJECTORY, samples=(replace(SAMPLE, support=support), FORKED_CUT))),
    )
    kept = read_table(tmp_path / "step.parquet", TRAINING_ROLLOUTS)
    assert kept["sampling_support"].to_pylist() == [[[8, 11, 300], [9], [7]]]
    assert kept["completion_ids"].to_pylist() == [[8, 9, 7]]


def test_an_attempt_that_sampled_nothing_is_a_row_too_and_one_with_a_result_between_its_turns_is_kept_whole() -> None:
    nothing = replace(TRAJECTORY, samples=(), text="", turns=0, stop_reason="excluded", fault="no server")
    gap = replace(FORKED, loss_mask=(False, False, True, False, False, True), logprobs=(0.0, 0.0, -1.0, 0.0, 0.0, -1.0))
    row, whole = rollout_table([nothing, replace(TRAJECTORY, samples=(gap,), turns=2)]).to_pylist()
    assert row == ROW | {
        "completion": "",
        "completion_ids": [],
        "rollout_logprobs": [],
        "weight_version": "",
        "turns": 0,
        "stop_reason": "excluded",
        "fault": "no server",
    }
    assert (whole["completion_ids"], whole["samples"][0]["token_ids"]) == ([8, 7], [5, 13, 8, 9, 4, 7])


def test_a_row_of_what_was_thrown_away_has_its_grade_and_no_advantage() -> None:
    (row,) = discarded_table(4, [GradedTrajectory(trajectory=TRAJECTORY, score=SCORE)]).to_pylist()
    assert (row["discarded"], row["step"], row["reward"], row["advantage"]) == (True, 4, 0.25, 0.0)
    assert (row["logprob_differences"], row["verdict"]) == ([], "unverifiable")


def test_a_sample_that_is_not_aligned_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="differ in length"):
        replace(SAMPLE, logprobs=(0.0,))
    with pytest.raises(AssertionError):
        replace(SAMPLE, logprobs=(0.0, -1.0, -0.5, -0.25))


def test_the_longest_turn_is_the_longest_stretch_that_the_policy_wrote() -> None:
    gap = replace(FORKED, loss_mask=(False, True, True, False, False, True), logprobs=(0.0, -1.0, -1.0, 0.0, 0.0, -1.0))
    assert TRAJECTORY.longest_turn == TRAJECTORY.tokens == 2
    assert replace(TRAJECTORY, samples=(FORKED, gap)).longest_turn == 2
    assert replace(TRAJECTORY, samples=()).longest_turn == 0
