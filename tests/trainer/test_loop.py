"""Whole runs with a scripted engine: the order of work, and that an interrupted run leaves the bytes of a whole one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import everyday
from tests.trainer import runs

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import total_bytes
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.rewards.config import Reward
from dagrpo.trainer import setup, training
from dagrpo.trainer.model import optimizer
from dagrpo.trainer.run import TrainingRun, no_report, step_file
from dagrpo.trainer.sampling.prompt_sampler import read_training_prompts
from dagrpo.trainer.setup import Setup
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import read_parquet

Inputs = tuple[Path, Path]


@pytest.fixture(scope="module")
def whole(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Four steps without an interruption."""
    out = tmp_path_factory.mktemp("whole")
    run = runs.training_run(inputs, out / "state", out, steps=4)
    runs.execute(run)
    return run


def test_every_step_samples_from_the_weights_of_the_step_before_and_nobody_gets_the_last(
    inputs: Inputs, tmp_path: Path
) -> None:
    asked, _ = runs.execute(runs.training_run(inputs, tmp_path / "state", tmp_path, steps=3))
    assert asked == ["load step_0", "generate", "load step_1", "generate", "load step_2", "generate"]


class Leaving(runs.ScriptedEngine):
    """An engine that leaves its GPU, and notes when."""

    def release_memory(self) -> None:
        self.asked.append("leave")


def test_an_engine_leaves_for_every_update_and_only_for_those(inputs: Inputs, tmp_path: Path) -> None:
    asked, _ = runs.execute(runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2), Leaving)
    assert asked == ["load step_0", "generate", "leave", "load step_1", "generate", "leave"]


def test_the_policy_learns_and_the_engine_agrees_with_it(whole: TrainingRun) -> None:
    metrics = read_parquet(whole.metrics)
    assert metrics["step"].to_pylist() == [1, 2, 3, 4]
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0.01
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-4
    versions = [read_parquet(whole.rollouts.with_name(f"step_{n:05d}.parquet"))["weight_version"] for n in (1, 4)]
    assert [set(column.to_pylist()) for column in versions] == [{"step_0"}, {"step_3"}]


def test_a_run_that_was_interrupted_leaves_the_bytes_of_one_that_was_not(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    runs.execute(run, stop=lambda step: step == 3)  # the state is that of step 2
    asked, reported = runs.execute(run)
    assert asked == ["load step_2", "generate", "load step_3", "generate"]
    assert runs.bytes_of(run) == runs.bytes_of(whole)
    assert [step for step, _ in reported] == [1, 2, 3, 4]


@pytest.mark.nightly
def test_a_resume_reads_the_table_of_the_newest_step_alone(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=6)
    runs.execute(run, stop=lambda step: step == 5)  # the state is that of step 4
    for step in (1, 2, 3):
        path = run.state / "rollouts" / step_file(step)
        path.write_bytes(bytes(path.stat().st_size))  # who reads it finds no table
    asked, _ = runs.execute(run, stop=lambda step: step == 6)
    assert asked[0] == "load step_4"


def _flip_a_byte_of_the_weights(state: Path) -> None:
    (path,) = state.glob("step_00002/*.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (_flip_a_byte_of_the_weights, "safetensors is changed (its sha256"),
        pytest.param(
            lambda state: (state / "metrics/step_00002.json").write_text("{}"),
            "step_00002.json is damaged",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            lambda state: (state / "rollouts/step_00001.parquet").unlink(),
            "step_00001.parquet is missing",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_what_was_damaged_before_a_run_goes_on_is_made_again_and_told(
    damage: Callable[[Path], object],
    fault: str,
    inputs: Inputs,
    whole: TrainingRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    runs.execute(run, stop=lambda step: step == 3)
    damage(run.state)
    asked, _ = runs.execute(run)
    assert asked[0] == "load step_0"
    assert runs.bytes_of(run) == runs.bytes_of(whole)
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("The state of step 2 cannot")]
    assert fault in told
    assert (run.state / "damaged_step_00002_1").is_dir()


def test_the_steps_before_an_interruption_are_reported_again_with_their_own_figures(
    inputs: Inputs, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    _, before = runs.execute(run, stop=lambda step: step == 3)
    _, after = runs.execute(run)
    for (step, first), (_, again) in zip(before[:2], after[:2], strict=True):
        assert again == {name: value for name, value in first.items() if name != "timing/record_seconds"}, step
    assert "timing/rollout_seconds" in after[0][1]


def test_a_step_reports_the_bytes_of_its_weight_sync(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2)
    _, steps = runs.execute(run)
    assert steps[0][1]["timing/weight_sync_bytes"] == total_bytes(open_tensors(run.policy))
    assert "timing/weight_sync_bytes" not in steps[1][1]  # nothing samples from the last weights


@pytest.mark.nightly
def test_more_steps_extend_a_finished_run_to_the_bytes_of_a_run_that_had_them_from_the_start(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    runs.execute(runs.training_run(inputs, tmp_path / "state", tmp_path / "short", steps=3))
    longer = runs.training_run(inputs, tmp_path / "state", tmp_path / "long", steps=4)
    asked, _ = runs.execute(longer)
    assert asked == ["load step_3", "generate"]
    assert runs.bytes_of(longer) == runs.bytes_of(whole)


def test_fewer_steps_than_are_finished_start_anew_and_leave_the_longer_run_its_state(
    inputs: Inputs, tmp_path: Path
) -> None:
    longer = runs.training_run(inputs, tmp_path / "state", tmp_path / "long", steps=3)
    runs.execute(longer)
    asked, _ = runs.execute(runs.training_run(inputs, tmp_path / "state", tmp_path / "short", steps=1))
    assert asked == ["load step_0", "generate"]
    assert runs.execute(longer)[0] == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "largest_gap"), everyday([("bfloat16", 0.25)], [("bfloat16", 0.25), ("float16", 0.05)])
)
def test_a_run_that_computes_in_fewer_bits_passes_the_gates_and_goes_on_exactly(
    dtype: str, largest_gap: float, inputs: Inputs, tmp_path: Path
) -> None:
    """The engine gets float32, and its logprobs are as far from the trainer's as rounding to fewer bits explains."""
    whole, killed = (
        replace(run, training=run.training.model_copy(update={"dtype": dtype}))
        for name in ("whole", "killed")
        for run in [runs.training_run(inputs, tmp_path / name / "state", tmp_path / name, steps=3)]
    )
    runs.execute(whole)
    largest = read_parquet(whole.metrics)["policy/logprob_difference_max"].to_pylist()
    assert all(1e-5 < each < largest_gap for each in largest)
    runs.execute(killed, stop=lambda step: step == 3)
    runs.execute(killed)
    assert runs.bytes_of(killed) == runs.bytes_of(whole)


@pytest.mark.nightly
def test_the_scale_of_the_loss_goes_on_from_the_state_where_updates_overflow(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins so large that more steps are skipped than training.gates.skipped_steps allows, which ends no run."""
    monkeypatch.setattr(optimizer, "FIRST_LOSS_SCALE", 2.0**32)
    whole, killed = (
        replace(run, training=run.training.model_copy(update={"dtype": "float16"}))
        for name in ("whole", "killed")
        for run in [runs.training_run(inputs, tmp_path / name / "state", tmp_path / name, steps=6)]
    )
    runs.execute(whole)
    table = read_parquet(whole.metrics)
    overflowed, scales = (table[name].to_pylist() for name in ("gate/overflowed_updates", "policy/loss_scale"))
    assert overflowed == [1.0] * 6
    assert scales == [2.0 ** (31 - step) for step in range(6)]
    runs.execute(killed, stop=lambda step: step == 5)
    runs.execute(killed)
    assert runs.bytes_of(killed) == runs.bytes_of(whole)


def test_a_head_in_float32_is_the_engines_and_the_policys(inputs: Inputs, tmp_path: Path) -> None:
    asked: list[Any] = []
    plain = runs.opener([])

    def opener(*given: Any, head_dtype: Any = None, **options: Any) -> Any:
        asked.append(head_dtype)
        return plain(*given, **options)

    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=1)
    run = replace(run, rollout=run.rollout.model_copy(update={"head_dtype": "float32"}))
    assert Setup(run, single_process()).policy.float32_head
    training.train(run, no_report, single_process(), opener)
    assert asked == ["float32"]


@pytest.mark.parametrize(
    "change", [{"micro_batch_tokens": 64}, pytest.param({"save_every": 1, "keep_states": 3}, marks=pytest.mark.nightly)]
)
def test_a_changed_runtime_goes_on_from_the_last_state(change: dict[str, int], inputs: Inputs, tmp_path: Path) -> None:
    first = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    runs.execute(first, stop=lambda step: step == 3)
    again = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4, permuted=False, **change)
    asked, _ = runs.execute(again)
    assert asked[0] == "load step_2"
    assert read_parquet(first.metrics).num_rows == 4


@pytest.mark.nightly
def test_two_processes_go_on_where_one_was_interrupted_and_leave_its_policy(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    runs.execute(run, stop=lambda step: step == 3)
    runs.launch(2, runs.__file__, *inputs, tmp_path, 4)
    assert json.loads((tmp_path / "asked.json").read_text()) == ["load step_2", "generate", "load step_3", "generate"]
    assert all((d.largest or 0.0) < 2e-4 for d in compare(run.policy, whole.policy).differences)
    ours, theirs = (read_parquet(each.rollouts.with_name("step_00004.parquet")) for each in (run, whole))
    assert ours["completion_ids"] == theirs["completion_ids"]


@pytest.mark.parametrize(
    ("keep", "left"), [pytest.param(0, [], marks=pytest.mark.nightly), (2, ["step_00003", "step_00004"])]
)
def test_a_finished_run_keeps_as_many_states_as_it_is_told(
    keep: int, left: list[str], inputs: Inputs, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4, save_every=1, keep_states=keep)
    runs.execute(run)
    assert sorted(path.name for path in run.state.glob("step_*")) == left


def test_a_finished_run_writes_its_outputs_again_without_an_engine(whole: TrainingRun, tmp_path: Path) -> None:
    before = runs.bytes_of(whole)
    asked, reported = runs.execute(whole)
    assert asked == []
    assert [step for step, _ in reported] == [1, 2, 3, 4]
    assert runs.bytes_of(whole) == before


def test_permuted_rewards_are_those_of_the_step_in_another_order(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=1, permuted=True)
    runs.execute(run)
    own, shuffled = (
        read_parquet(each.rollouts.with_name("step_00001.parquet"))["reward"].to_pylist() for each in (whole, run)
    )
    assert sorted(own) == sorted(shuffled)
    assert own != shuffled


def test_greedy_completions_are_a_baseline_and_no_rollouts(inputs: Inputs, whole: TrainingRun, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=1)
    remax = Algorithm.model_validate({"advantage": {"name": "remax"}})
    _, reported = runs.execute(replace(run, algorithm=remax))
    own, plain = (read_parquet(each.rollouts.with_name("step_00001.parquet")).to_pylist() for each in (run, whole))
    assert [row["completion_ids"] for row in own] == [row["completion_ids"] for row in plain]
    assert [row["advantage"] for row in own] == pytest.approx([row["reward"] - row["greedy_reward"] for row in own])
    mean = sum(row["greedy_reward"] for row in own) / len(own)
    assert reported[0][1]["reward/greedy_mean"] == pytest.approx(mean)
    assert {row["sample_index"] for row in own} == {0, 1, 2, 3}


@pytest.mark.nightly
def test_a_run_whose_rewards_are_all_equal_goes_on_and_says_so_once_after_an_interruption_too(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = replace(runs.training_run(inputs, tmp_path / "state", tmp_path, steps=7), reward=Reward())
    runs.execute(run, stop=lambda step: step == 3)
    assert "nothing can be learned" not in capsys.readouterr().err
    _, reported = runs.execute(run)
    assert [metrics["gate/steps_without_advantage"] for _, metrics in reported] == [1, 2, 3, 4, 5, 6, 7]
    told = [line for line in capsys.readouterr().err.splitlines() if "nothing can be learned" in line]
    assert len(told) == 1
    assert told[0].startswith("train (seed 7), step 5: for 5 steps no completion is better than another of its problem")
    assert told[0] in caplog.text


@pytest.fixture
def _with_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems that offer a tool, which the scripted policy does not know how to call."""

    def problems(*arguments: Any) -> list[Prompt]:
        return [
            replace(each, tools=({"function": {"name": "calculator"}},)) for each in read_training_prompts(*arguments)
        ]

    monkeypatch.setattr(setup, "read_training_prompts", problems)


@pytest.mark.nightly
@pytest.mark.usefixtures("_with_a_tool")
def test_a_tool_that_is_never_called_stops_the_run_and_again_after_a_resume(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=6)
    for _ in range(2):  # the second time from the state of step 4
        with pytest.raises(UserError, match=r"step 5: the task offers tools \(calculator\), and no trajectory"):
            runs.execute(run)


@pytest.mark.usefixtures("_with_a_tool")
def test_figures_of_turns_and_calls_are_columns_where_the_task_has_tools(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=2)
    _, reported = runs.execute(run)
    metrics, single = read_parquet(run.metrics), read_parquet(whole.metrics)
    assert metrics["rollout/turns_mean"].to_pylist() == [1.0, 1.0]
    assert metrics["tool/calls_of_calculator"].to_pylist() == [0.0, 0.0]
    assert "tool/seconds_mean" in reported[-1][1]
    assert not [name for name in metrics.column_names if "seconds_m" in name or "cached" in name]
    assert not [name for name in single.column_names if name.startswith(("tool/", "rollout/turns"))]
