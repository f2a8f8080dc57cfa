"""The figures of a step, computed by hand, and the files that they are kept in."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.trainer.attempts import attempt, scored, written
from tests.trainer.computed import COMPUTED

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rollout.table import without_discarded
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.history import HackingWarnings
from dagrpo.trainer.metrics.step import rollout_rows, step_metrics
from dagrpo.trainer.state import states, tensors
from dagrpo.trainer.state.digest_table import FILE, StepDigests, read_digests
from dagrpo.trainer.state.records import Record
from dagrpo.trainer.update.stats import UpdateStats
from dagrpo.utils.distributed import single_process
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet


def _graded(index: int, tokens: int, reward: float, *, correct: bool) -> GradedTrajectory:
    own = written(range(10, 10 + tokens), (5, 6))
    numbers = {"sample_index": index % 2, "sampling_seed": index}
    trajectory = attempt(index // 2, own, finish_reason="length" if tokens == 3 else "stop", **numbers)
    return scored(trajectory, reward, "right" if correct else "missing", accuracy=reward)


ROLLOUTS = Rollouts(
    step=4,
    group_size=2,
    graded=(
        _graded(0, 1, 1.0, correct=True),
        _graded(1, 3, 0.0, correct=False),
        _graded(2, 2, 0.0, correct=False),
        _graded(3, 2, 0.0, correct=False),
    ),
    rewards=torch.tensor([1.0, 0.0, 0.0, 0.0]),
    components={},
    advantages=torch.tensor([1.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]),
)
DIGESTS = StepDigests(
    computed=COMPUTED,
    gradients=({"a": "0" * 64},),
    weights={"a": "1" * 64, "b": "2" * 64},
)
STATS = UpdateStats(
    logprobs=torch.tensor([-1.0, -1.5, -1.0, -1.0, -1.0, -1.0, -1.0, -1.5]),
    entropy=2.0,
    loss=0.5,
    kl=0.0,
    metrics={"clip_fraction": 0.25},
    grad_norm=3.0,
    learning_rate=0.1,
    digests=DIGESTS,
)


def test_the_metrics_of_a_step_are_those_computed_by_hand() -> None:
    metrics = step_metrics(ROLLOUTS, STATS)
    assert metrics["policy/off_policy_kl"] == 0.125
    assert {name: value for name, value in metrics.items() if not name.startswith("policy/off_policy_")} == {
        "reward/mean": 0.25,
        "reward/std": pytest.approx(3**0.5 / 4),
        "reward/accuracy": 0.25,
        "reward/missing_answer_fraction": 0.75,
        "reward/unverifiable_fraction": 0.0,
        "reward/component/accuracy": 0.25,
        "rollout/groups_without_spread": 0.5,
        "rollout/groups_without_advantage": 0.5,
        "policy/advantage_mean": 0.0,
        "policy/advantage_std": pytest.approx((2 / 3) ** 0.5),
        "rollout/length_mean": 2.0,
        "rollout/length_max": 3.0,
        "rollout/truncated_fraction": 0.25,
        "policy/loss": 0.5,
        "policy/kl": 0.0,
        "policy/entropy": 2.0,
        "policy/clip_fraction": 0.25,
        "policy/grad_norm": 3.0,
        "policy/learning_rate": 0.1,
        "policy/logprob_difference_mean": 0.125,
        "policy/logprob_difference_max": 0.5,
    }


def test_the_trainers_logprobs_are_cut_at_the_ends_of_completions() -> None:
    table = rollout_rows(ROLLOUTS, STATS.logprobs)
    assert table["logprob_differences"].to_pylist() == [[0.0], [-0.5, 0.0, 0.0], [0.0, 0.0], [0.0, -0.5]]
    assert table["advantage"].to_pylist() == [1.0, -1.0, 0.0, 0.0]
    assert table["step"].to_pylist() == [5] * 4


def _recorded(folder: Path, steps: int) -> Record:
    record = Record(folder)
    for step in range(1, steps + 1):
        rows = pa.table({"step": [step] * 3, "problem_index": [7, 7, 4]})
        record.add(step, rows, {"policy/loss": float(step)}, {"timing/update_seconds": 9.0}, DIGESTS)
    return record


def test_seconds_are_reported_and_are_no_part_of_the_result(tmp_path: Path) -> None:
    record = _recorded(tmp_path / "state", 2)
    record.write_metrics(2, tmp_path / "metrics.parquet")
    assert read_parquet(tmp_path / "metrics.parquet").to_pydict() == {"step": [1, 2], "policy/loss": [1.0, 2.0]}
    assert record.reported(2) == {"policy/loss": 2.0, "timing/update_seconds": 9.0}


def test_what_a_part_of_a_step_was_waited_for_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 16.0])
    monkeypatch.setattr("dagrpo.trainer.clock.time.perf_counter", lambda: next(now))
    clock = Clock()
    clock.lap("gates")
    clock.lap("rollout")
    clock.split("rollout", "rewards", 2.0)
    assert clock.laps == {"timing/gates_seconds": 1.0, "timing/rollout_seconds": 3.0, "timing/rewards_seconds": 2.0}


def test_the_folder_of_rollouts_has_the_steps_asked_for_and_lists_them(tmp_path: Path) -> None:
    manifest = tmp_path / "rollouts" / "manifest.json"
    _recorded(tmp_path / "state", 3).write_rollouts(2, manifest)
    assert sorted(read_json(manifest)["files"]) == [FILE, "step_00001.parquet", "step_00002.parquet"]
    assert len(list(manifest.parent.iterdir())) == 4
    assert read_digests(manifest.with_name(FILE)) == {1: DIGESTS, 2: DIGESTS}


def test_greedy_completions_have_a_mean_of_their_own_and_stand_beside_each_attempt() -> None:
    plain, rollouts = step_metrics(ROLLOUTS, STATS), replace(ROLLOUTS, greedy_rewards=torch.tensor([0.5, math.nan]))
    assert step_metrics(rollouts, STATS) == plain | {"reward/greedy_mean": 0.5}
    assert rollout_rows(rollouts, STATS.logprobs)["greedy_reward"].to_pylist() == [0.5, 0.5, None, None]
    assert rollout_rows(ROLLOUTS, STATS.logprobs)["greedy_reward"].to_pylist() == [None] * 4


@pytest.mark.parametrize("kind", ["metrics/step_00002.json", "rollouts/step_00002.parquet"])
def test_a_damaged_early_step_is_made_again_from_the_state_before_it_and_all_is_said_once(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record, model = _recorded(tmp_path, 5), torch.nn.Linear(2, 2)
    for step in (1, 4, 5):
        tensors.save(tmp_path, step, model, torch.optim.AdamW(model.parameters()), single_process(), keep=3)
    (tmp_path / kind).write_bytes(b"damaged")
    assert states.latest(tmp_path, 9, record.require_whole) == states.at(tmp_path, 1)
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"The state of step 5 and 1 before it cannot be used, as {tmp_path / kind} ")
    assert "and step 2, which belongs to the result, has to be made again: they are kept as" in told


def _left_out() -> Rollouts:
    """Three groups of two: of the first one trajectory is excluded, of the third both have no sample."""
    excluded = _changed(_graded(1, 3, 9.0, correct=True), stop_reason="excluded", fault="no server")
    nothing = [_changed(_graded(index, 1, 9.0, correct=True), samples=()) for index in (4, 5)]
    one, two, three = ROLLOUTS.graded[0], ROLLOUTS.graded[2], ROLLOUTS.graded[3]
    return Rollouts(
        step=4,
        group_size=2,
        graded=(one, excluded, two, three, *nothing),
        rewards=torch.tensor([1.0, 9.0, 0.0, 0.5, 9.0, 9.0]),
        components={},
        advantages=torch.tensor([0.0, -1.0, -1.0, 1.0, 1.0]),
    )


def _changed(graded: GradedTrajectory, **changes: Any) -> GradedTrajectory:
    return replace(graded, trajectory=replace(graded.trajectory, **changes))


def test_what_is_left_out_is_in_no_mean_and_in_no_update() -> None:
    rollouts, stats = _left_out(), replace(STATS, logprobs=torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.5]))
    metrics = step_metrics(rollouts, stats)
    assert metrics["reward/mean"] == 0.5
    assert metrics["reward/std"] == pytest.approx((1 / 6) ** 0.5)
    assert metrics["reward/accuracy"] == pytest.approx(1 / 3)
    assert metrics["rollout/length_mean"] == pytest.approx(5 / 3)
    assert metrics["rollout/truncated_fraction"] == 0.0
    assert metrics["policy/advantage_std"] == 1.0
    assert metrics["rollout/groups_without_spread"] == pytest.approx(
        2 / 3
    )  # a group with less than two left teaches nothing
    assert metrics["policy/logprob_difference_max"] == 0.5
    batch = rollouts.batch()
    assert batch.trajectories.tolist() == [0, 2, 3]
    assert batch.positive.tolist() == [True, False, False]
    assert batch.sequences.trained == [1, 2, 2]
    table = rollout_rows(rollouts, stats.logprobs)
    assert table["logprob_differences"].to_pylist() == [[0.0], [], [0.0, 0.0], [0.0, -0.5], [], []]
    assert table["completion_ids"].to_pylist()[1] == [10, 11, 12]
    assert table["reward"].to_pylist() == [1.0, 9.0, 0.0, 0.5, 9.0, 9.0]


def test_groups_of_equal_rewards_are_counted_in_the_update_unless_they_are_filtered() -> None:
    """The second group of ROLLOUTS has two rewards of 0."""
    assert [ROLLOUTS.batch().counts(sequence) for sequence in range(4)] == [True] * 4
    filtered = replace(ROLLOUTS, zero_variance_filter=True)
    assert [filtered.batch().counts(sequence) for sequence in range(4)] == [True, True, False, False]
    assert step_metrics(filtered, STATS) == step_metrics(ROLLOUTS, STATS), "they stay in the figures of the step"


def test_discarded_groups_stand_among_the_others_in_the_order_of_drawing() -> None:
    thrown_away = tuple(_graded(index, 2, 0.5, correct=True) for index in (8, 9))
    metrics = {"rollout/rounds": 2.0}
    rollouts = replace(ROLLOUTS, used=(True, False, True), discarded=thrown_away, sampling_metrics=metrics)
    table = rollout_rows(rollouts, STATS.logprobs)
    assert table["problem_index"].to_pylist() == [0, 0, 4, 4, 1, 1]
    assert table["discarded"].to_pylist() == [False, False, True, True, False, False]
    assert table["advantage"].to_pylist() == [1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert [len(each) for each in table["logprob_differences"].to_pylist()] == [1, 3, 0, 0, 2, 2]
    assert table["reward"].to_pylist() == [1.0, 0.0, 0.5, 0.5, 0.0, 0.0]
    assert without_discarded(table) == rollout_rows(ROLLOUTS, STATS.logprobs)
    assert step_metrics(rollouts, STATS) == step_metrics(ROLLOUTS, STATS) | {"rollout/rounds": 2.0}


def test_the_samples_of_a_trajectory_share_its_place_and_advantage() -> None:
    forked = written([8], (5, 6, 7), -2.0)
    first = ROLLOUTS.graded[0]
    first = _changed(first, samples=(*first.trajectory.samples, forked))
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.5, -0.5])
    rollouts = replace(ROLLOUTS, graded=(first, *ROLLOUTS.graded[1:]), advantages=advantages)
    batch = rollouts.batch()
    assert batch.trajectories.tolist() == [0, 0, 1, 2, 3]
    assert batch.positive.tolist() == [True, True, False, False, False]
    assert rollouts.logprobs[:3].tolist() == [-1.0, -2.0, -1.0]
    logprobs = torch.arange(9.0)
    table = rollout_rows(rollouts, logprobs)
    assert table["logprob_differences"].to_pylist()[:2] == [[1.0, 3.0], [3.0, 4.0, 5.0]]
    assert table["advantage"].to_pylist() == [1.0, -1.0, 0.0, 0.0]
    assert table["token_advantages"].to_pylist() == [[], [], [], [0.5, -0.5]]


STEPS = 80


def _record(folder: Path, form: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Record:
    record, rows = Record(folder), pa.table({"problem_index": [1]})
    accuracy = np.interp(np.arange(STEPS), [0, 30, 79], [0.3, 0.7, 0.2])
    noise = np.random.default_rng(0).normal(0, 0.01, (2, STEPS))
    for step in range(STEPS):
        metrics = {
            "reward/accuracy": float(accuracy[step] + noise[0, step]),
            "reward/component/format": float(form[step] + noise[1, step]),
        }
        record.add(step + 1, rows, metrics, {}, StepDigests(computed=COMPUTED, gradients=(), weights={}))
    return record


def _warned(record: Record, capsys: pytest.CaptureFixture[str]) -> list[str]:
    warnings = HackingWarnings("train (seed 7)")
    for step in range(1, STEPS + 1):
        warnings.warn(step, record)
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).split())
    return text.split("train (seed 7), ")[1:]


@pytest.mark.parametrize(
    ("form", "begins", "cause"),
    [
        ((0.1, 0.9), "step 60: the component format rose from 0.", "the policy seems to exploit it"),
        ((0.9, 0.1), "step 80: accuracy fell from 6", "training diverges"),
    ],
)
def test_an_exploited_component_is_named_once_or_the_collapse_where_it_falls_too(
    form: tuple[float, float], begins: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sentence,) = _warned(_record(tmp_path, np.linspace(*form, STEPS)), capsys)
    assert sentence.startswith(begins)
    assert cause in sentence
