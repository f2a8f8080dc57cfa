"""Mixtures of tasks with verl's stand-in: its order or ours, each row graded by its own task, figures of each task."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.trainer.foreign_runs import mixture_in, path_with, train

from dagrpo.core.errors import TransientError, UserError
from dagrpo.utils.tables import read_parquet
from dagrpo_foreign.files import drawn_prompts, write_inputs
from dagrpo_verl.mapping import has_our_order

VERL = {"training": {"backend": {"name": "verl"}}}
BOXED = '["\\\\boxed{{truth}}"]'


@pytest.mark.nightly
def test_shares_are_those_of_our_own_trainer_in_each_step_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path_with("verl"))
    monkeypatch.setenv("STAND_IN_ENDS_AFTER", "3")
    run = mixture_in(tmp_path, VERL, {"arithmetic": 0.75, "boxed": 0.25})
    with pytest.raises(TransientError):
        train(run)
    monkeypatch.delenv("STAND_IN_ENDS_AFTER")
    train(run)
    planned = [json.loads(line) for line in (run.state / "planned.jsonl").read_text().splitlines()]
    ours = [prompt.index for prompt in drawn_prompts(run, write_inputs(run, tmp_path / "again").prompts)]
    assert [row for step in planned for row in step] == ours
    assert [Counter(row >= 10 for row in step) for step in planned] == [{False: 3, True: 1}] * 4
    table = read_parquet(run.metrics).to_pydict()
    assert table["task/arithmetic/groups"] == [3.0] * 4
    assert table["task/boxed/groups"] == [1.0] * 4
    assert table["task/arithmetic/reward_mean"] == table["task/arithmetic/correct_fraction"] == [1.0] * 4
    assert table["task/boxed/reward_mean"] == [0.0] * 4, "the answer stands in no box"
    assert table["task/boxed/no_signal_fraction"] == [1.0] * 4
    assert min(table["task/boxed/tokens_mean"]) > 5


@pytest.mark.nightly
def test_a_list_is_shuffled_by_verl_and_graded_by_the_verifier_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path_with("verl"))
    monkeypatch.setenv("STAND_IN_TURNS", BOXED)
    run = mixture_in(tmp_path, VERL, {})
    train(run)
    table = read_parquet(run.metrics).to_pydict()
    groups = list(zip(table["task/arithmetic/groups"], table["task/boxed/groups"], strict=True))
    assert all(sum(of_step) == 4 for of_step in groups)
    assert [each for each in table["task/boxed/reward_mean"] if each == each] == [1.0] * sum(
        two > 0 for _, two in groups
    )
    assert {each for each in table["task/arithmetic/reward_mean"] if each == each} == {0.0}


def test_rows_of_several_tasks_have_numbers_of_their_own(tmp_path: Path) -> None:
    inputs = write_inputs(mixture_in(tmp_path, VERL, {}), tmp_path / "state")
    numbers = [info["index"] for info in read_parquet(inputs.rows)["extra_info"].to_pylist()]
    assert numbers == [prompt.index for prompt in inputs.prompts] == list(range(16))


def test_shares_with_dynamic_sampling_are_refused_and_a_list_is_not(tmp_path: Path) -> None:
    changes = VERL["training"] | {"dynamic_sampling": {"max_rounds": 1000}}
    run = mixture_in(tmp_path, {"training": changes}, {"arithmetic": 0.5, "boxed": 0.5})
    with pytest.raises(UserError, match="max_rounds to 1, or name the tasks as a list"):
        has_our_order(run.shares, run.training)
    assert not has_our_order({}, run.training)
    assert not has_our_order({"arithmetic": 1.0}, run.training)
