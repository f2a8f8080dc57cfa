"""Steps of whole runs computed again: what was recorded is found again, and whatever has changed is found and named."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.trainer import runs
from typer.testing import CliRunner

from dagrpo.algorithms.config import Algorithm
from dagrpo.cli import application as application
from dagrpo.core.errors import UserError
from dagrpo.data.schema import to_table
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.mixture import spread_evenly
from dagrpo.rollout.table import without_discarded
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model import prepare
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state.digest_table import read_digests
from dagrpo.trainer.update import policy_update
from dagrpo.utils.distributed import single_process
from dagrpo.utils.files import read_json, sha256_of, write_json
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_replay.command import require_recorded, steps_of
from dagrpo_replay.recomputation import StepCheck, basis, explain_difference, replay
from dagrpo_replay.recorded_run import RecordedRun, read_run, unfinished
from dagrpo_replay.recorded_step import read_step

Inputs = tuple[Path, Path]
WITH_TERMS = Algorithm.model_validate(
    {
        "kl": {"coefficient": 0.1},
        "terms": {"positive_nll": {"coefficient": 0.01}},
        "loss": {"name": "ppo_clip", "clip_low": 0.1, "clip_high": 0.1},
    }
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return runs.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def finished(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Four steps of two updates each, with a reference, a term and the head in chunks; the states of steps 3 and 4 are kept."""
    out = tmp_path_factory.mktemp("finished")
    run = runs.training_run(
        inputs, out / "state", out, steps=4, save_every=1, keep_states=2, micro_batch_size=3, head_chunk_tokens=4
    )
    run = replace(run, algorithm=WITH_TERMS, training=run.training.model_copy(update={"mini_batches": 2}))
    runs.execute(run)
    return run


def _read(run: TrainingRun, state: Path) -> RecordedRun:
    return unfinished(run.policy.parent, state)


def _replayed(run: RecordedRun, *steps: int) -> list[StepCheck]:
    try:
        return replay(run, steps, single_process())
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.nightly
def test_steps_that_were_sampled_ahead_are_found_again_bit_for_bit(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4, save_every=1, keep_states=2)
    run = replace(run, training=run.training.model_copy(update={"staleness": 1}))
    runs.execute(run)
    checks = _replayed(_read(run, run.state), 2, 4)
    assert [(check.step, check.difference) for check in checks] == [(1, None), (2, None), (4, None)]
    assert [check.after for check in checks] == [0, 0, 3]


def test_batches_of_a_mixture_whose_groups_were_put_in_another_order_are_found_again(
    inputs: Inputs, tmp_path: Path
) -> None:
    """Groups with spread are rare, so that those of the batch are not sampled in turn; both mini-batches have a group of each task."""
    write_parquet(tmp_path / "b.parquet", to_table([replace(runs.task_row(n), task="b") for n in range(10, 18)]))
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=3, save_every=1)
    sizes = {"prompts_per_step": 4, "samples_per_prompt": 2, "mini_batches": 2}
    run = runs.changed(
        run,
        training=sizes | {"dynamic_sampling": {"max_rounds": 2, "oversampling": 2}},
        reward={"components": {"overlong": {"weight": 1.0, "buffer": 1}}},
    )
    run = replace(
        run, train_splits={"arithmetic": inputs[1], "b": tmp_path / "b.parquet"}, shares={"arithmetic": 1, "b": 1}
    )
    runs.execute(run)
    recorded = replace(_read(run, run.state), state=tmp_path / "none")
    tasks = [without_discarded(read_parquet(recorded.table(step)))["task"].to_pylist()[::2] for step in (1, 2, 3)]
    assert any(own != spread_evenly(Counter(own)) for own in tasks), "in sampling order they are not spread evenly"
    assert [check.difference for check in _replayed(recorded, 3)] == [None] * 3


def test_what_a_gpu_hashed_is_hashed_in_the_same_way_on_a_cpu(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2, save_every=1, keep_states=2)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(policy_update, "usual_hash", lambda world: "gpu_tensor_hash")
        runs.execute(run)
    (check,) = _replayed(_read(run, run.state), 2)
    assert (check.after, check.difference) == (1, None)
    assert check.computed.computed.hashed_by == "gpu_tensor_hash"
    assert {len(digest) for digest in check.recorded.weights.values()} == {16}


def test_every_step_of_a_run_is_found_again_bit_for_bit_from_the_initial_checkpoint(
    finished: TrainingRun, tmp_path: Path
) -> None:
    checks = _replayed(replace(_read(finished, finished.state), state=tmp_path / "none"), 4)
    assert [(check.step, check.after, check.difference) for check in checks] == [(n, 0, None) for n in (1, 2, 3, 4)]
    assert all(len(check.recorded.gradients) == 2 for check in checks)
    assert all(check.largest_logprob_difference == 0.0 for check in checks)
    assert all(check.recorded_grad_norm == check.stats.grad_norm > 0 for check in checks)


def test_the_layout_is_measured_once_however_many_steps_are_computed_again(
    finished: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    own = prepare._difference

    def counted(policy: Policy) -> str | None:
        measured.append(1)
        return own(policy)

    monkeypatch.setattr(prepare, "_difference", counted)
    checks = _replayed(replace(_read(finished, finished.state), state=tmp_path / "none"), 3)
    assert [check.computed.computed.layout for check in checks] == ["packed"] * 3
    assert len(measured) == 1


@pytest.mark.nightly
def test_steps_that_leave_groups_out_and_tokens_that_are_drawn_from_a_few_are_found_again(
    inputs: Inputs, tmp_path: Path
) -> None:
    """Groups are thrown away and filtered, and some mini-batches have none that counts."""
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    sizes = {"steps": 4, "prompts_per_step": 3, "samples_per_prompt": 2, "mini_batches": 3, "learning_rate": 1e-2}
    filters = {"dynamic_sampling": {"oversampling": 1.4}, "zero_variance_filter": True}
    run = replace(
        run,
        training=Training.model_validate(sizes | filters),
        rollout=Rollout(max_new_tokens=runs.MAX_NEW_TOKENS, top_p=0.9, top_k=5),
        reward=Reward.model_validate({"components": {"overlong": {"weight": 1.0, "buffer": 1}}}),
    )
    runs.execute(run)
    tables = [read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet")) for step in (1, 2, 3, 4)]
    assert any(any(table["discarded"].to_pylist()) for table in tables)
    assert max(read_parquet(run.metrics)["rollout/groups_without_spread"].to_pylist()) > 0
    recorded = replace(_read(run, run.state), state=tmp_path / "none")
    checks = _replayed(recorded, 4)
    assert [check.difference for check in checks] == [None] * 4
    assert all(check.largest_logprob_difference == 0.0 for check in checks)
    unfiltered = run.training.model_copy(update={"zero_variance_filter": False})
    differences = [check.difference for check in _replayed(replace(recorded, training=unfiltered), 4)]
    assert any(differences), "what is filtered would show"


@pytest.mark.nightly
def test_a_run_that_records_every_second_step_is_compared_in_these(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=3, save_every=1, keep_states=3)
    run = replace(run, training=run.training.model_copy(update={"digests_every": 2}))
    runs.execute(run)
    recorded = _read(run, run.state)
    assert [recorded.digests[step].are_recorded for step in (1, 2, 3)] == [False, True, False]
    assert read_digests(run.rollouts.with_name("digests.parquet")) == recorded.digests
    with pytest.raises(UserError, match=r"in step 3 \(training\.digests_every\): ask for one of every 2, such as 2"):
        require_recorded(recorded, [3])
    checks = _replayed(recorded, 2, 3)  # from the state of step 1, which has no digests
    assert [(check.is_compared, check.difference) for check in checks] == [(True, None), (False, None)]
    assert {check.after for check in checks} == {1}
    assert "1 of 1 steps" in basis(recorded, checks, checks[0].computed.computed)
    assert "1 more were computed on the way" in basis(recorded, checks, checks[0].computed.computed)
    other = replace(recorded, training=run.training.model_copy(update={"learning_rate": 1e-3}))
    found = [bool(check.difference) for check in _replayed(replace(other, state=tmp_path / "none"), 3)]
    assert found == [False, True, False]


def test_a_step_is_computed_from_the_nearest_state_before_it(finished: TrainingRun) -> None:
    checks = _replayed(_read(finished, finished.state), 1, 4)
    assert [(check.step, check.after, check.difference) for check in checks] == [(1, 0, None), (4, 3, None)]


def test_an_unfinished_run_is_checked_up_to_its_last_step(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=9)
    runs.execute(run, stop=lambda step: step == 3)
    recorded = _read(run, run.state)
    assert [(check.step, check.after, check.difference) for check in _replayed(recorded, 3)] == [(3, 2, None)]
    with pytest.raises(UserError, match=r"has no step 4: it has the steps 1 to 3\."):
        require_recorded(recorded, [2, 4])


@pytest.fixture
def copied(finished: TrainingRun, tmp_path: Path) -> Path:
    """The state of the finished run, to be changed."""
    return Path(shutil.copytree(finished.state, tmp_path / "state"))


def _changed_rollouts(path: Path, column: str) -> None:
    """Another value for the last token of every attempt."""
    table = read_parquet(path)
    place = table.column_names.index(column)
    values = [[*row[:-1], row[-1] + 1] if isinstance(row, list) else row + 1 for row in table[column].to_pylist()]
    field = table.schema.field(place)
    write_parquet(path, table.set_column(place, field, pa.array(values, field.type)))


@pytest.mark.parametrize("column", ["rollout_logprobs", "advantage", "completion_ids"])
def test_rollouts_that_were_changed_show_in_the_gradient_of_their_step(
    column: str, finished: TrainingRun, copied: Path
) -> None:
    run = _read(finished, copied)
    _changed_rollouts(run.table(2), column)
    checks = _replayed(run, 2)
    assert [check.difference is None for check in checks] == [True, False]
    assert checks[1].difference is not None
    assert (checks[1].difference.kind, checks[1].difference.update) == ("gradient", 1)
    assert not checks[1].weights_agree


def test_changed_rollouts_are_not_those_on_record(finished: TrainingRun, copied: Path) -> None:
    _changed_rollouts(copied / "rollouts" / "step_00002.parquet", "advantage")
    with pytest.raises(UserError, match=r"step_00002\.parquet is changed"):
        _read(finished, copied)


def test_another_parameter_of_the_optimizer_shows_after_the_first_update(finished: TrainingRun, tmp_path: Path) -> None:
    run = replace(_read(finished, finished.state), state=tmp_path / "none")
    lower = run.training.model_copy(update={"weight_decay": 0.5, "mini_batches": 2})
    check = _replayed(replace(run, training=lower), 1)[0]
    # The first update of a step has the same weights as then, the second no more.
    assert check.difference is not None
    assert (check.difference.kind, check.difference.update) == ("gradient", 2)
    sentence = explain_difference([check])
    assert sentence is not None
    assert sentence.startswith(
        "Step 1, computed again from the initial checkpoint, is not what the run recorded: the gradient of its"
    )


def test_a_state_with_other_weights_than_were_recorded_is_refused(finished: TrainingRun) -> None:
    run = _read(finished, finished.state)
    digests = dict(run.digests)
    digests[3] = replace(digests[3], weights={**digests[3].weights, "model.norm.weight": "0" * 64})
    with pytest.raises(
        UserError, match=r"step_00003 is not the state .* weights after step 3 differ first in model\.norm\.weight"
    ):
        _replayed(replace(run, digests=digests), 4)


def test_a_damaged_state_is_passed_over_and_left_where_it_is(finished: TrainingRun, copied: Path) -> None:
    (copied / "step_00003" / "state.json").write_text("{}")
    checks = _replayed(_read(finished, copied), 4)
    assert [(check.after, check.difference) for check in checks] == [(0, None)] * 4
    assert (copied / "step_00003" / "state.json").read_text() == "{}"


def _as_if_two_processes_had_computed(run: RecordedRun, step: int) -> RecordedRun:
    computed = replace(run.digests[step].computed, processes=2)
    return replace(run, digests={**run.digests, step: replace(run.digests[step], computed=computed)})


def test_steps_that_more_processes_computed_are_not_mixed_with_those_of_fewer(
    finished: TrainingRun, tmp_path: Path
) -> None:
    run = replace(_as_if_two_processes_had_computed(_read(finished, finished.state), 4), state=tmp_path / "none")
    sentence = (
        r"step 3 was computed by 1 processes .* step 4 by 2 processes .* from step 1 to step 4\. Ask for steps up to 3,"
    )
    with pytest.raises(UserError, match=sentence):
        run.computed([4])
    assert run.computed([2, 3]).micro_batch_size == 3
    assert run.computed([2, 3]).head_chunk_tokens == 4
    kept = replace(run, state=finished.state)
    assert kept.computed([4]).processes == 2  # from the state after step 3
    with pytest.raises(UserError):
        kept.computed([1, 4])


@pytest.mark.parametrize("other", [{"prompts_per_step": 2}, {"samples_per_prompt": 2}, {"samples_per_prompt": 8}])
def test_rollouts_of_other_groups_than_the_parameters_say_are_refused(
    other: dict[str, int], finished: TrainingRun
) -> None:
    training = finished.training.model_copy(update=other)
    with pytest.raises(
        UserError, match=r"step_00001\.parquet has 16 attempts at 4 prompts, and a step has .* set both to"
    ):
        read_step(finished.rollouts.parent / "step_00001.parquet", training)


def _publish(run: TrainingRun, folder: Path) -> Path:
    """The outputs of a run in the folder of a seed, with what the stage notes about them, and without its state."""
    shutil.copytree(run.rollouts.parent, folder / "rollouts")
    shutil.copytree(run.initial, folder / "initial")
    shutil.copy(run.metrics, folder / "metrics.parquet")
    names = (f"rollouts/{MANIFEST}", "metrics.parquet")
    provenance = {
        "experiment": "published",
        "stage": "train",
        "seed": run.seed,
        "code": "",
        "params": {**read_json(run.state / "run.json"), "experiment": {"train": "arithmetic"}},
        "inputs": {f"runs/seed_7/initial/{MANIFEST}": sha256_of(run.initial / MANIFEST)},
        "outputs": {f"runs/seed_7/{name}": sha256_of(folder / name) for name in names},
        "environment": {"torch": torch.__version__, "machine": "vax", "device": "cpu"},
    }
    write_json(folder / "policy" / "provenance.json", provenance)
    return folder


def test_a_third_party_checks_a_run_from_its_outputs_alone(
    finished: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = _publish(finished, tmp_path / "seed_7")
    assert read_run(folder).state == Path(".state") / read_run(folder).state.name
    done = CliRunner().invoke(application.app, ["replay", str(folder), "--steps", "1,2"], catch_exceptions=False)
    torch.use_deterministic_algorithms(False)
    assert done.exit_code == 0
    assert "2 of 2 steps that were computed again agree bit for bit" in done.output
    assert "machine vax" in done.output
    (folder / "rollouts" / "step_00001.parquet").unlink()
    with pytest.raises(UserError, match=r"step_00001\.parquet is missing: restore it"):
        read_run(folder)


def test_a_run_that_is_not_what_was_recorded_ends_the_command_with_a_sentence(
    finished: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = _publish(finished, tmp_path / "seed_7")
    provenance = read_json(folder / "policy" / "provenance.json")
    provenance["params"]["training"]["learning_rate"] = 1.0
    write_json(folder / "policy" / "provenance.json", provenance)
    done = CliRunner().invoke(application.app, ["replay", str(folder), "--steps", "1"])
    torch.use_deterministic_algorithms(False)
    assert isinstance(done.exception, UserError)
    assert "Step 1, computed again from the initial checkpoint, is not what the run recorded" in str(done.exception)
    assert "0 of 1 steps" in done.output


@pytest.mark.nightly
@pytest.mark.parametrize("copies", [1, 2])
def test_what_two_processes_trained_is_computed_again_by_two_with_as_many_copies_of_the_policy(
    copies: int, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPIES", f"{copies}")
    runs.launch(2, runs.__file__, *inputs, tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    folder = _publish(runs.training_run(inputs, tmp_path / "state", tmp_path, steps=1), tmp_path / "seed_7")
    computed = read_run(folder).computed([1])
    assert (computed.processes, computed.copies) == (2, copies)
    assert CliRunner().invoke(application.app, ["replay", str(folder)]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "steps"), [("3,17", [3, 17]), ("17, 3,3", [3, 17]), ("2-4", [2, 3, 4]), ("1", [1]), ("4,2-3", [2, 3, 4])]
)
def test_steps_are_named_by_numbers_and_ranges(text: str, steps: list[int]) -> None:
    assert steps_of(text) == steps


@pytest.mark.parametrize("text", ["", "0", "3-1", "a", "1,", "1-", "-1", "1.5", "1-2-3", "١", "9" * 30, "1-99999999"])
def test_other_steps_are_refused_with_what_was_written(text: str) -> None:
    with pytest.raises(UserError, match=r"--steps .* is no (step|range)"):
        steps_of(text)


def test_a_folder_without_a_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"has no policy/provenance\.json, and \.state has no state of it"):
        read_run(tmp_path / "seed_0")


def test_an_unfinished_run_is_found_by_its_state(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("results/tiny/runs/seed_7")
    for state, other in (("tiny-1", folder), ("tiny-2", folder.with_name("seed_8"))):
        run = runs.training_run(inputs, Path(".state") / state, other, steps=2)
        run.describe()
    assert json.loads((Path(".state/tiny-1/run.json")).read_text())["seed"] == 7
    assert read_run(folder).state == Path(".state/tiny-1")
    assert read_run(folder).steps == 0
    with pytest.raises(UserError, match="has not finished a step yet"):
        require_recorded(read_run(folder), [1])
