"""Whole runs with a scripted engine: the order of work, and that an interrupted run leaves the bytes of a whole one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.everyday import everyday
from tests.trainer import runs

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import total_bytes
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.rewards.config import Reward
from dagrpo.trainer import setup, training
from dagrpo.trainer.model import optimizer
from dagrpo.trainer.run import TrainingRun, no_report, step_file
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.trainer.setup import Setup
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.tables import read_parquet

Inputs = tuple[Path, Path]


class Leaving(runs.ScriptedEngine):
    """An engine that leaves its GPU, and notes when."""

    def release_memory(self) -> None:
        self.asked.append("leave")


class Whole(NamedTuple):
    """Run, what its engine was asked, and what was reported."""

    run: TrainingRun
    asked: list[str]
    reported: runs.Reported


@pytest.fixture(scope="module")
def whole(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Four steps without an interruption."""
    run = _run(inputs, tmp_path_factory.mktemp("whole"))
    return Whole(run, *runs.execute(run, Leaving))


def _run(inputs: Inputs, out: Path, steps: int = 4, **runtime: Any) -> TrainingRun:
    return runs.training_run(inputs, out / "state", out, steps, **runtime)


def test_every_step_samples_from_the_weights_of_the_step_before_and_the_engine_leaves_for_its_update(
    whole: Whole,
) -> None:
    """Nobody gets the last weights."""
    assert whole.asked == [part for step in range(4) for part in (f"load step_{step}", "generate", "leave")]
    tables = [read_parquet(whole.run.rollouts.with_name(f"step_{n:05d}.parquet")) for n in (1, 4)]
    assert [set(each["weight_version"].to_pylist()) for each in tables] == [{"step_0"}, {"step_3"}]
    sizes = [metrics.get("timing/weight_sync_bytes") for _, metrics in whole.reported]
    assert sizes == [total_bytes(open_tensors(whole.run.policy))] * 3 + [None]


def test_the_policy_learns_and_the_engine_agrees_with_it(whole: Whole) -> None:
    metrics = read_parquet(whole.run.metrics)
    assert metrics["step"].to_pylist() == [1, 2, 3, 4]
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0.01
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-4


def test_a_run_that_was_interrupted_leaves_the_bytes_of_one_that_was_not(
    inputs: Inputs, whole: Whole, tmp_path: Path
) -> None:
    """The steps before are reported again with their own figures."""
    run = _run(inputs, tmp_path)
    _, before = runs.execute(run, stop=lambda step: step == 3)  # the state is that of step 2
    asked, after = runs.execute(run)
    assert asked == ["load step_2", "generate", "load step_3", "generate"]
    assert runs.bytes_of(run) == runs.bytes_of(whole.run)
    assert [step for step, _ in after] == [1, 2, 3, 4]
    for (step, first), (_, again) in zip(before[:2], after[:2], strict=True):
        assert again == {name: value for name, value in first.items() if name != "timing/record_seconds"}, step
    assert "timing/rollout_seconds" in after[0][1]


@pytest.mark.nightly
def test_a_resume_reads_the_table_of_the_newest_step_alone(inputs: Inputs, tmp_path: Path) -> None:
    run = _run(inputs, tmp_path, 6)
    runs.execute(run, stop=lambda step: step == 5)  # the state is that of step 4
    for step in (1, 2, 3):
        path = run.state / "rollouts" / step_file(step)
        path.write_bytes(bytes(path.stat().st_size))  # who reads it finds no table
    asked, _ = runs.execute(run, stop=lambda step: step == 6)
    assert asked[0] == "load step_4"


def test_a_state_that_was_damaged_is_made_again_and_told(
    inputs: Inputs, whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(inputs, tmp_path)
    runs.execute(run, stop=lambda step: step == 3)
    (path,) = run.state.glob("step_00002/*.safetensors")
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    asked, _ = runs.execute(run)
    assert asked[0] == "load step_0"
    assert runs.bytes_of(run) == runs.bytes_of(whole.run)
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("The state of step 2 cannot")]
    assert "safetensors is changed (its sha256" in told


@pytest.mark.nightly
def test_more_steps_extend_a_finished_run_to_the_bytes_of_a_run_that_had_them_from_the_start(
    inputs: Inputs, whole: Whole, tmp_path: Path
) -> None:
    runs.execute(runs.training_run(inputs, tmp_path / "state", tmp_path / "short", steps=3))
    longer = runs.training_run(inputs, tmp_path / "state", tmp_path / "long", steps=4)
    asked, _ = runs.execute(longer)
    assert asked == ["load step_3", "generate"]
    assert runs.bytes_of(longer) == runs.bytes_of(whole.run)


def test_fewer_steps_than_are_finished_start_anew_and_leave_the_longer_run_its_state(
    inputs: Inputs, tmp_path: Path
) -> None:
    longer = runs.training_run(inputs, tmp_path / "state", tmp_path / "long", steps=3)
    runs.execute(longer)
    asked, _ = runs.execute(runs.training_run(inputs, tmp_path / "state", tmp_path / "short", steps=1))
    assert asked == ["load step_0", "generate"]
    assert runs.execute(longer)[0] == []


START, DELTA = 0.01, 0.02
# The entropy of a random policy is always below the target: the coefficient rises after every step.
RISING = {"adaptive_entropy": {"coefficient": START, "delta": DELTA, "target": 90.0}}
Columns = dict[str, list[float]]


def _differ_by_at_most(nats: float) -> Callable[[Columns], bool]:
    """Check that the engine, which gets float32, is as far from the trainer as rounding to fewer bits explains."""
    return lambda metrics: all(1e-5 < each < nats for each in metrics["policy/logprob_difference_max"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"training": {"dtype": "bfloat16"}}, _differ_by_at_most(0.25)),
        ({"training": {"dtype": "float16"}}, _differ_by_at_most(0.05)),
        (
            {"algorithm": {"terms": RISING}},
            lambda metrics: (
                metrics["policy/adaptive_entropy_coefficient"]
                == pytest.approx([START + DELTA * step for step in range(4)])
            ),
        ),
    ],
    ids=["bfloat16", "float16", "an adapted coefficient"],
)
def test_other_parameters_go_on_to_the_same_bytes(
    changes: dict[str, Any], holds: Callable[[Columns], bool], inputs: Inputs, tmp_path: Path
) -> None:
    whole, killed = (runs.changed(_run(inputs, tmp_path / name), **changes) for name in ("whole", "killed"))
    runs.execute(whole)
    assert holds(read_parquet(whole.metrics).to_pydict())
    runs.execute(killed, stop=lambda step: step == 3)
    runs.execute(killed)
    assert runs.bytes_of(killed) == runs.bytes_of(whole)


@pytest.mark.nightly
def test_the_scale_of_the_loss_goes_on_from_the_state_where_updates_overflow(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins so large that more steps are skipped than training.gates.skipped_steps allows, which ends no run."""
    monkeypatch.setattr(optimizer, "FIRST_LOSS_SCALE", 2.0**32)
    half = {"dtype": "float16"}
    whole, killed = (runs.changed(_run(inputs, tmp_path / name, 6), training=half) for name in ("whole", "killed"))
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

    run = runs.changed(_run(inputs, tmp_path, 1), rollout={"head_dtype": "float32"})
    assert Setup(run, single_process()).policy.float32_head
    training.train(run, no_report, single_process(), opener)
    assert asked == ["float32"]


@pytest.mark.parametrize(
    "change", [{"micro_batch_tokens": 64}, pytest.param({"save_every": 1, "keep_states": 3}, marks=pytest.mark.nightly)]
)
def test_a_changed_runtime_goes_on_from_the_last_state(change: dict[str, int], inputs: Inputs, tmp_path: Path) -> None:
    first = _run(inputs, tmp_path)
    runs.execute(first, stop=lambda step: step == 3)
    asked, _ = runs.execute(_run(inputs, tmp_path, **change))
    assert asked[0] == "load step_2"
    assert read_parquet(first.metrics).num_rows == 4


def _train(world: World, inputs: Inputs, out: Path) -> list[str]:
    return runs.execute(_run(inputs, out), world=world)[0]


@pytest.mark.nightly
def test_two_processes_go_on_where_one_was_interrupted_and_leave_its_policy(
    inputs: Inputs, whole: Whole, tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path)
    runs.execute(run, stop=lambda step: step == 3)
    asked, _ = runs.launch(2, _train, inputs, tmp_path)
    assert asked == ["load step_2", "generate", "load step_3", "generate"]
    assert all((d.largest or 0.0) < 2e-4 for d in compare(run.policy, whole.run.policy).differences)
    ours, theirs = (read_parquet(each.rollouts.with_name("step_00004.parquet")) for each in (run, whole.run))
    assert ours["completion_ids"] == theirs["completion_ids"]


@pytest.mark.parametrize(
    ("keep", "left"), everyday([(2, ["step_00003", "step_00004"])], [(0, []), (2, ["step_00003", "step_00004"])])
)
def test_a_finished_run_keeps_as_many_states_as_it_is_told_and_writes_its_outputs_again_without_an_engine(
    keep: int, left: list[str], inputs: Inputs, tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path, save_every=1, keep_states=keep)
    runs.execute(run)
    assert sorted(path.name for path in run.state.glob("step_*")) == left
    if keep:
        before = runs.bytes_of(run)
        asked, reported = runs.execute(run)
        assert (asked, [step for step, _ in reported]) == ([], [1, 2, 3, 4])
        assert runs.bytes_of(run) == before


@pytest.mark.nightly
def test_a_run_whose_rewards_are_all_equal_goes_on_and_says_so_once_after_an_interruption_too(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = replace(_run(inputs, tmp_path, 7), reward=Reward())
    runs.execute(run, stop=lambda step: step == 3)
    assert "nothing can be learned" not in capsys.readouterr().err
    _, reported = runs.execute(run)
    assert [metrics["gate/steps_without_advantage"] for _, metrics in reported] == [1, 2, 3, 4, 5, 6, 7]
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "nothing can be learned" in line]
    assert told.startswith("train (seed 7), step 5: for 5 steps no completion is better than another of its problem")
    assert told in caplog.text


@pytest.fixture
def _with_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems that offer a tool, which the scripted policy does not know how to call."""

    def problems(*arguments: Any) -> list[Prompt]:
        tools = ({"function": {"name": "calculator"}},)
        return [replace(each, tools=tools) for each in read_training_prompts(*arguments)]

    monkeypatch.setattr(setup, "read_training_prompts", problems)


@pytest.mark.nightly
@pytest.mark.usefixtures("_with_a_tool")
def test_a_tool_that_is_never_called_stops_the_run_and_again_after_a_resume(inputs: Inputs, tmp_path: Path) -> None:
    run = _run(inputs, tmp_path, 6)
    for _ in range(2):  # the second time from the state of step 4
        with pytest.raises(UserError, match=r"step 5: the task offers tools \(calculator\), and no trajectory"):
            runs.execute(run)


@pytest.mark.usefixtures("_with_a_tool")
def test_figures_of_turns_and_calls_are_columns_where_the_task_has_tools(
    inputs: Inputs, whole: Whole, tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path, 2)
    _, reported = runs.execute(run)
    metrics, single = read_parquet(run.metrics), read_parquet(whole.run.metrics)
    assert metrics["rollout/turns_mean"].to_pylist() == [1.0, 1.0]
    assert metrics["tool/calls_of_calculator"].to_pylist() == [0.0, 0.0]
    assert "tool/seconds_mean" in reported[-1][1]
    assert not [name for name in metrics.column_names if "seconds_m" in name or "cached" in name]
    assert not [name for name in single.column_names if name.startswith(("tool/", "rollout/turns"))]
