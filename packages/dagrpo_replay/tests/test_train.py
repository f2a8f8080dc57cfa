"""Halves of steps, put together again, are what a whole run does."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.trainer import runs
from tests.trainer.conftest import inputs
from typer.testing import CliRunner

from dagrpo.cli import application as application
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.trainer.config.dynamic_sampling import DynamicSampling
from dagrpo.trainer.model import prepare
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state.digest_table import FILE, read_digests
from dagrpo.trainer.state.states import SavedState, named
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_replay import train as place
from dagrpo_replay.half_steps import RolloutHalf, update_from
from dagrpo_replay.train import describe_rollouts

Inputs = tuple[Path, Path]
__all__ = ["inputs"]


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def whole(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Two whole steps."""
    out = tmp_path_factory.mktemp("whole")
    run = runs.training_run(inputs, out / "state", out, steps=2)
    runs.execute(run)
    return run


def _rollouts(run: TrainingRun, start: SavedState | None, step: int) -> list[str]:
    asked: list[str] = []
    half = RolloutHalf(run, single_process(), start, runs.opener(asked))
    assert [made for made, _ in half.write([step], run.rollouts.parent)] == [step]
    return asked


def _updates(run: TrainingRun, start: SavedState | None, tables: dict[int, Path]) -> SavedState:
    assert [step for step, _ in update_from(run, tables, start, single_process())] == list(tables)
    return named(run.state / f"step_{max(tables):05d}")


def test_rollouts_then_updates_then_rollouts_are_those_of_a_whole_run(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run, start = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2), None
    for step in (1, 2):
        assert _rollouts(run, start, step) == [f"load step_{step - 1}", "generate"]
        table = run.rollouts.with_name(f"step_{step:05d}.parquet")
        assert table.read_bytes() == whole.rollouts.with_name(table.name).read_bytes()
        start = _updates(run, start, {step: table})
    assert read_digests(run.metrics.with_name(FILE))[2] == read_digests(whole.rollouts.with_name(FILE))[2]


def test_a_state_that_holds_batches_is_refused_as_its_next_prompts_are_drawn(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    run = replace(run, training=run.training.model_copy(update={"staleness": 1}))
    runs.execute(run, stop=lambda step: step == 3)
    half = runs.training_run(inputs, tmp_path / "half" / "state", tmp_path / "half", steps=4)
    with pytest.raises(UserError, match=r"has batches that training\.staleness has sampled ahead"):
        _rollouts(half, named(run.state / "step_00002"), 3)


def test_rollouts_from_a_state_go_on_with_the_prompts_behind_all_that_the_run_drew(
    inputs: Inputs, tmp_path: Path
) -> None:
    def drawing_more(name: str) -> TrainingRun:
        run = runs.training_run(
            inputs, tmp_path / name / "state", tmp_path / name, steps=2, save_every=1, keep_states=2
        )
        more = DynamicSampling(oversampling=1.5)
        return replace(run, training=run.training.model_copy(update={"dynamic_sampling": more}))

    whole, half = drawing_more("whole"), drawing_more("half")
    runs.execute(whole)
    torch.use_deterministic_algorithms(True)
    _rollouts(half, named(whole.state / "step_00001"), 2)
    ours, theirs = (run.rollouts.with_name("step_00002.parquet") for run in (half, whole))
    assert read_parquet(theirs).num_rows == 24
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_state_that_does_not_say_what_was_drawn_is_refused_where_that_is_not_a_number_of_steps(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    half = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2)
    state = _updates(half, None, {1: whole.rollouts.parent / "step_00001.parquet"})
    for switch in ({"dynamic_sampling": DynamicSampling(max_rounds=2)}, {"retire_at": 0.9}):
        run = replace(half, training=half.training.model_copy(update=switch))
        with pytest.raises(UserError, match=r"state/step_00001 does not say which prompts its steps have drawn"):
            RolloutHalf(run, single_process(), state)


def test_updates_from_the_rollouts_of_a_run_leave_its_weights_and_figures(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout is measured once, not in each step."""
    measured: list[Policy] = []
    own = prepare._difference

    def noted(policy: Policy) -> str | None:
        measured.append(policy)
        return own(policy)

    monkeypatch.setattr(prepare, "_difference", noted)
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2)
    _updates(run, None, place.tables_in(whole.rollouts.parent, None))
    assert len(measured) == 1
    assert read_digests(run.metrics.with_name(FILE)) == read_digests(whole.rollouts.with_name(FILE))
    ours, theirs = read_parquet(run.metrics), read_parquet(whole.metrics)
    assert ours["policy/grad_norm"] == theirs["policy/grad_norm"]
    assert ours["policy/logprob_difference_max"] == theirs["policy/logprob_difference_max"]


def _changed(whole: TrainingRun, folder: Path, name: str, values: Sequence[Any]) -> dict[int, Path]:
    """The rollouts of the first step with another column."""
    table = read_parquet(whole.rollouts.with_name("step_00001.parquet"))
    place, path = table.column_names.index(name), folder / "step_00001.parquet"
    write_parquet(path, table.set_column(place, table.schema.field(place), pa.array(values, table.schema.types[place])))
    return {1: path}


def test_rollouts_of_another_step_or_policy_are_refused(inputs: Inputs, whole: TrainingRun, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2)
    first = read_parquet(whole.rollouts.with_name("step_00001.parquet"))
    with pytest.raises(UserError, match=r"has the rollouts of step 7: name it step_00007\.parquet"):
        _updates(run, None, _changed(whole, tmp_path, "step", [7] * len(first)))
    prompts = [[10**6, *ids[1:]] for ids in first["prompt_ids"].to_pylist()]
    with pytest.raises(UserError, match=r"step 1 have the token 1000000, and the policy knows 0 to \d+: name rollouts"):
        _updates(run, None, _changed(whole, tmp_path, "prompt_ids", prompts))


def test_an_update_that_was_skipped_is_told(inputs: Inputs, whole: TrainingRun, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2)
    attempts = len(read_parquet(whole.rollouts.with_name("step_00001.parquet")))
    _updates(run, None, _changed(whole, tmp_path, "advantage", [math.nan] * attempts))
    assert read_parquet(run.metrics)["gate/skipped_updates"].to_pylist() == [1.0]


def test_another_learning_rate_leads_elsewhere_from_the_same_rollouts(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2)
    run = replace(run, training=run.training.model_copy(update={"learning_rate": 1e-3}))
    _updates(run, None, place.tables_in(whole.rollouts.parent, [1]))
    ours, theirs = (read_digests(each)[1] for each in (run.metrics.with_name(FILE), whole.rollouts.with_name(FILE)))
    assert ours.gradients == theirs.gradients
    assert ours.weights != theirs.weights


def test_the_rollouts_that_are_asked_for_are_taken_and_no_other_file(tmp_path: Path) -> None:
    for name in ("step_00002.parquet", "step_00010.parquet", "digests.parquet", "step_3.parquet"):
        (tmp_path / name).touch()
    assert list(place.tables_in(tmp_path, None)) == [2, 10]
    assert place.tables_in(tmp_path, [10]) == {10: tmp_path / "step_00010.parquet"}
    assert list(place.tables_in(tmp_path / "step_00002.parquet", None)) == [2]
    with pytest.raises(UserError, match=r"has no rollouts of step 3: it has those of 2, 10\."):
        place.tables_in(tmp_path, [3])
    with pytest.raises(UserError, match="has no rollouts: name a file"):
        place.tables_in(tmp_path / "nowhere", None)


@pytest.mark.parametrize("folder", ["results", "results/tiny/mine", "data/x", ".state/x", "models/../results/y"])
def test_no_half_is_written_where_stages_write(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="where stages write: name a folder of your own"):
        place.require_own_folder(Path(folder))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    place.require_own_folder(tmp_path / "new")
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="already exists"):
        place.require_own_folder(tmp_path)


def test_an_input_that_is_missing_is_named_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"seed_0/initial/manifest\.json is missing.*snakemake --cores all results"):
        place.training_run(Params(), None, tmp_path / "to")


@pytest.mark.parametrize("options", [[], ["--rollouts-only", "--from-rollouts", "x"]])
def test_one_half_is_to_be_named(options: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(application.app, ["train", "--to", str(tmp_path / "to"), *options])
    assert "Say which half: --rollouts-only or --from-rollouts" in str(done.exception)


@pytest.mark.parametrize("name", ["step_00001", "policy"])
def test_a_state_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"is no (whole|saved) state"):
        named(tmp_path / name)


def test_the_figures_of_rollouts_are_those_computed_by_hand() -> None:
    table = pa.table(
        {
            "reward": [1.0, 0.0, 9.0],
            "verdict": ["right", "missing", "right"],
            "completion_tokens": [1, 2, 1],
            "logprob_differences": [[-0.5], [0.0, 1.0], []],
            "discarded": [False, False, True],
        }
    )
    assert describe_rollouts(table) == {
        "reward/mean": 0.5,
        "reward/accuracy": 0.5,
        "rollout/length_mean": 1.5,
        "policy/logprob_difference_mean": 0.5,  # (0.5 + 0 + 1) / 3
        "policy/logprob_difference_max": 1.0,
    }
