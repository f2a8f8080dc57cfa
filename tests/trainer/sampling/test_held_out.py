"""Runs that answer held-out problems on their way: at which steps, and that nothing else is another for it."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import everyday
from tests.trainer import runs

from dagrpo.config.schema import parse
from dagrpo.core.errors import Terminated, UserError
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.evaluation.held_out_table import HELD_OUT, figures
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.trainer.run import HeldOutSplits, TrainingRun
from dagrpo.utils.tables import read_parquet

Inputs = tuple[Path, Path]


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> tuple[HeldOutSplits, ...]:
    """Two tasks: one of six problems, two of which are trained on, and one with a validation split of three."""
    folder = tmp_path_factory.mktemp("data")
    return (
        runs.held_out_splits(folder, "sums", range(8, 14)),
        runs.held_out_splits(folder, "more", range(30, 35), range(40, 43)),
    )


def evaluating(
    inputs: Inputs,
    splits: Sequence[HeldOutSplits],
    out: Path,
    state: Path,
    *,
    steps: int = 4,
    every: int = 3,
    **more: Any,
) -> TrainingRun:
    run = replace(runs.training_run(inputs, state, out, steps=steps), held_out_splits=tuple(splits))
    return runs.changed(run, training={"evaluate_every": every, "evaluation_problems": 4, **more})


Whole = tuple[TrainingRun, list[str], runs.Reported, runs.Reported]


@pytest.fixture(scope="module")
def whole(inputs: Inputs, splits: tuple[HeldOutSplits, ...], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Four steps without an interruption: the run, what the engine was asked, what was reported of steps and of evaluations."""
    out = tmp_path_factory.mktemp("whole")
    run, told = evaluating(inputs, splits, out, out / "state"), runs.Reported()
    asked, reported = runs.execute(run, report_held_out=lambda step, values: told.append((step, dict(values))))
    return run, asked, reported, told


def test_the_curve_has_the_same_problems_of_each_task_at_each_of_these_steps_and_none_of_training(whole: Whole) -> None:
    run, _, reported, told = whole
    table = read_parquet(run.held_out)
    assert table.schema.equals(HELD_OUT)
    found: dict[tuple[int, str, str], list[int]] = {}
    for row in table.to_pylist():
        found.setdefault((row["step"], row["task"], row["split"]), []).append(row["problem_index"])
    assert list(found) == [(step, *task) for step in (0, 3, 4) for task in (("sums", "test"), ("more", "validation"))]
    assert {tuple(rows) for (_, task, _), rows in found.items() if task == "sums"} == {(2, 3, 4, 5)}, (
        "0 and 1 are trained on"
    )
    assert {tuple(rows) for (_, task, _), rows in found.items() if task == "more"} == {(0, 1, 2)}
    assert told == [*figures(table.to_pylist()).items()]
    assert [step for step, _ in told] == [0, 3, 4]
    assert all("timing/held_out_seconds" in metrics for _, metrics in reported)
    assert all(metrics["timing/held_out_seconds"] > 1e-3 for step, metrics in reported if step in (1, 4))


def test_it_changes_no_byte_of_what_training_makes(inputs: Inputs, whole: Whole, tmp_path: Path) -> None:
    plain = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    asked, _ = runs.execute(plain)
    ours, theirs = runs.bytes_of(whole[0]), runs.bytes_of(plain)
    assert ours.pop("held_out") != theirs.pop("held_out")
    assert ours == theirs
    assert read_parquet(plain.held_out).num_rows == 0
    assert whole[1] == [*asked, "load step_4"]


@pytest.mark.parametrize("stopped_at", everyday([3], [1, 3, 4]))
def test_an_interrupted_run_leaves_the_bytes_of_one_that_was_not(
    stopped_at: int, inputs: Inputs, splits: tuple[HeldOutSplits, ...], whole: Whole, tmp_path: Path
) -> None:
    run, told = evaluating(inputs, splits, tmp_path, tmp_path / "state"), runs.Reported()
    runs.execute(run, stop=lambda step: step == stopped_at)
    runs.execute(run, report_held_out=lambda step, values: told.append((step, dict(values))))
    assert runs.bytes_of(run) == runs.bytes_of(whole[0])
    assert told == whole[3]
    assert runs.execute(run)[0] == [], "and writes them again without an engine"


@pytest.mark.nightly
@pytest.mark.usefixtures("stage_handlers")
def test_a_run_that_is_told_to_stop_while_the_last_policy_answers_goes_on_with_that_alone(
    inputs: Inputs, splits: tuple[HeldOutSplits, ...], whole: Whole, tmp_path: Path
) -> None:
    class Stopping(runs.ScriptedEngine):
        def generate(self, requests: Sequence[SamplingRequest], **how: Any) -> list[Completion]:
            if self.version == "step_4":
                os.kill(os.getpid(), signal.SIGTERM)
            return super().generate(requests, **how)

    run = evaluating(inputs, splits, tmp_path, tmp_path / "state")
    with pytest.raises(Terminated):
        runs.execute(run, Stopping)
    asked, _ = runs.execute(run)
    assert asked == ["load step_4"]
    assert runs.bytes_of(run) == runs.bytes_of(whole[0])


@pytest.mark.nightly
def test_more_steps_leave_out_the_evaluation_of_what_was_the_last(
    inputs: Inputs, splits: tuple[HeldOutSplits, ...], whole: Whole, tmp_path: Path
) -> None:
    runs.execute(evaluating(inputs, splits, tmp_path / "short", tmp_path / "state", steps=2, every=2))
    longer = evaluating(inputs, splits, tmp_path / "long", tmp_path / "state", steps=4, every=2)
    runs.execute(longer)
    assert sorted(figures(read_parquet(longer.held_out).to_pylist())) == [0, 2, 4]


class RisingOnce(runs.ScriptedEngine):
    """Engine whose policy answers the held-out problems with 12 from step 1 on, and with nothing before."""

    def _completion(self, request: SamplingRequest) -> Completion:
        made = super()._completion(request)
        is_held_out = request.temperature == 0 and request.max_new_tokens == runs.MAX_NEW_TOKENS
        if not is_held_out or self.version == "step_0":
            return made
        tokens = character_tokenizer(128)("#### 12")["input_ids"]
        return replace(
            made, token_ids=(*tokens, runs._STOP), logprobs=(-0.1,) * (len(tokens) + 1), finish_reason="stop"
        )


def test_the_answers_are_graded_by_the_verifier_of_their_task(
    inputs: Inputs, splits: tuple[HeldOutSplits, ...], tmp_path: Path
) -> None:
    """Every greedy answer after step 0 is `#### 12`, which one of the four problems asks for: 1+11."""
    run = evaluating(inputs, splits[:1], tmp_path, tmp_path / "state", steps=1, every=1)
    told: list[Mapping[str, float]] = []
    runs.execute(run, RisingOnce, report_held_out=lambda step, values: told.append(values))
    assert told == [{"held_out/sums/greedy": accuracy} for accuracy in (0.0, 0.25)]
    rows = [row for row in read_parquet(run.held_out).to_pylist() if row["step"] == 1]
    assert {(row["problem_index"], row["verdict"], row["extracted"]) for row in rows} == {
        (2, "wrong", "12"),
        (3, "right", "12"),
        (4, "wrong", "12"),
        (5, "wrong", "12"),
    }


@pytest.mark.parametrize("staleness", everyday([1], [0, 1]))
def test_a_run_ends_once_its_held_out_accuracy_has_not_risen_for_as_many_evaluations_as_its_patience(
    staleness: int,
    inputs: Inputs,
    splits: tuple[HeldOutSplits, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its accuracy is 0 at first and 1/4 from step 1 on: the second evaluation without a rise follows step 3."""
    options = {"steps": 8, "every": 1, "patience": 2, "staleness": staleness}
    run = evaluating(inputs, splits[:1], tmp_path / "whole", tmp_path / "whole" / "state", **options)
    _, reported = runs.execute(run, RisingOnce)
    assert [step for step, _ in reported] == [1, 2, 3]
    assert read_parquet(run.metrics)["step"].to_pylist() == [1, 2, 3]
    assert list(figures(read_parquet(run.held_out).to_pylist())) == [0, 1, 2, 3]
    assert "ends after step 3 of 8" in capsys.readouterr().err
    assert runs.execute(run)[0] == [], "the outputs are written again without an engine"

    shorter, more = (
        evaluating(inputs, splits[:1], tmp_path / "more", tmp_path / "state", **(options | {"steps": steps}))
        for steps in (3, 8)
    )
    runs.execute(shorter, RisingOnce)
    runs.execute(more, RisingOnce, stop=lambda step: step == 3)
    runs.execute(more, RisingOnce)
    assert runs.bytes_of(more) == runs.bytes_of(run), "more steps and a signal to stop change nothing"


def test_patience_needs_evaluations() -> None:
    with pytest.raises(UserError, match=r"training.patience is 2, but training.evaluate_every is 0"):
        parse({"training": {"patience": 2}})
    with pytest.raises(UserError, match=r"every 10 steps, take all of the 20 training.steps"):
        parse({"training": {"patience": 2, "evaluate_every": 10, "steps": 20}})


def test_a_split_that_is_all_trained_on_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    splits = runs.held_out_splits(tmp_path, "sums", [1])
    with pytest.raises(UserError, match=r"test.parquet has only problems that are also in the train split"):
        runs.execute(evaluating(inputs, [splits], tmp_path, tmp_path / "state"))
    splits = runs.held_out_splits(tmp_path, "sums", [20])
    mixed = {"arithmetic": inputs[1], "others": splits.test}
    with pytest.raises(UserError, match=r"test.parquet has only problems that are also in the train split"):
        runs.execute(replace(evaluating(inputs, [splits], tmp_path, tmp_path / "state"), train_splits=mixed))
