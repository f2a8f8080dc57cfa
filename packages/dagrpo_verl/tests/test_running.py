"""Stage train with a stand-in for verl, which has its files and interfaces and trains nothing (stand_in/)."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packages.dagrpo_verl.tests import scripted_attempts, several_turns, with_pictures
from tests.trainer import runs
from tests.trainer.foreign_runs import path_with, run_in, train

from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.core.errors import TransientError, UserError
from dagrpo.data.schema import to_table
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import read_parquet, write_parquet

pytestmark = pytest.mark.nightly


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingRun:
    """A run of verl's stand-in."""
    monkeypatch.setenv("PYTHONPATH", path_with("verl"))
    changes = {"training": {"backend": {"name": "verl"}}, "runtime": {"backend": {"silent_minutes": 3}}}
    return run_in(tmp_path, changes)


def test_a_run_that_is_killed_resumes_and_brings_checkpoint_and_metrics_back(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_ENDS_AFTER", "3")
    with pytest.raises(TransientError, match="killed by signal 9"):
        train(run)
    monkeypatch.delenv("STAND_IN_ENDS_AFTER")
    reported: list[int] = []
    train(run, lambda step, metrics: reported.append(step))
    assert reported == [1, 2, 3, 4]
    assert verify(run.policy).format == "dcp"
    before, after = open_tensors(run.initial), open_tensors(run.policy)
    for name in before.specs:
        assert torch.allclose(after.read(name), before.read(name) + 0.004), name
    table = read_parquet(run.metrics).to_pydict()
    assert table["step"] == [1, 2, 3, 4]
    assert table["reward/mean"] == [1.0] * 4  # the ground truths, graded by our own process
    assert table["policy/grad_norm"] == [1.0] * 4
    assert table["verl/perf/mfu"] == [0.5] * 4
    assert table["verl/seed"] == [7.0] * 4


def test_a_run_that_ends_between_a_checkpoint_and_its_metrics_goes_on_without_these(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_ENDS_UNLOGGED", "2")
    with pytest.raises(TransientError, match="killed by signal 9"):
        train(run)
    train(run)
    assert read_parquet(run.metrics)["reward/mean"].to_pylist() == [1.0, None, 1.0, 1.0]


def test_what_verl_will_draw_is_in_provenance_and_another_prompt_ends_the_run_at_its_step(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_DRAWS_OTHERS_IN", "3")
    reported: list[int] = []
    with pytest.raises(UserError, match=r"other prompts in step 3 .*: rows \d.*, and not \d"):
        train(run, lambda step, metrics: reported.append(step))
    assert reported == [1, 2]
    assert run.facts["verl"] == {"version": "0.9.1", "draws": sha256_of(run.state / "planned.jsonl")}


def test_a_lost_response_ends_the_run_which_goes_on_from_its_last_checkpoint(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_LOSES_IN", "3")
    monkeypatch.setenv("STAND_IN_HANGS_AFTER", "3")  # a step of verl takes longer than to notice
    with pytest.raises(TransientError, match=r"lost 1 responses in step 3, to the rows \d+"):
        train(run)
    monkeypatch.delenv("STAND_IN_LOSES_IN")
    monkeypatch.delenv("STAND_IN_HANGS_AFTER")
    train(run)
    assert read_parquet(run.metrics)["step"].to_pylist() == [1, 2, 3, 4]


def test_an_attempt_that_cannot_be_graded_ends_the_run(run: TrainingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [runs.task_row(number) for number in range(10)]
    write_parquet(
        run.train_splits["arithmetic"], to_table([*rows[:1], *(replace(row, ground_truth="none") for row in rows[1:])])
    )
    monkeypatch.setenv("STAND_IN_TURNS", '["#### 1"]')
    with pytest.raises(UserError, match=r"step 1 cannot be graded: row 0"):
        train(run)


def test_a_run_with_pictures_brings_both_parts_of_the_model_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path_with("verl"))
    run = with_pictures.run_in(tmp_path, "qwen2_5_vl")
    train(run)
    before, after = open_tensors(run.initial), open_tensors(run.policy)
    assert any(".visual." in f".{name}" for name in before.specs)
    for name in before.specs:
        assert torch.allclose(after.read(name), before.read(name) + 0.001 * run.training.steps), name
    assert min(read_parquet(run.metrics)["reward/mean"].to_pylist()) > 0.0


def test_an_environment_without_verl_is_refused_with_its_remedy(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(UserError, match=r"cannot import verl.*runtime\.backend\.python"):
        train(run)


def test_a_key_that_verl_does_not_have_is_refused_before_any_work(run: TrainingRun) -> None:
    with pytest.raises(UserError, match="gpu_memory"):
        train(run, settings={"actor_rollout_ref.rollout.gpu_memory": 0.6})


def test_verl_gets_the_tokens_masks_and_rewards_of_our_own_loop(tmp_path: Path) -> None:
    run = several_turns.run_in(tmp_path)
    scripts = several_turns.SCRIPTS
    found = scripted_attempts.attempts(sys.executable, run, tmp_path / "state", scripts, path_with("verl"))
    several_turns.require_ours(found, run)


def test_verl_gets_the_placeholders_and_pictures_of_our_own_prompts(tmp_path: Path) -> None:
    run = with_pictures.run_in(tmp_path, "qwen2_5_vl")
    found = scripted_attempts.attempts(
        sys.executable, run, tmp_path / "state", with_pictures.SCRIPTS, path_with("verl")
    )
    with_pictures.require_ours(found, run)
