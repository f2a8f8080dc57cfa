"""Whole runs with a scripted engine on two tasks: what each batch has of them, and that a killed run leaves the same bytes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.everyday import everyday
from tests.trainer import runs
from transformers import PreTrainedTokenizerBase

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.types import SamplingRequest
from dagrpo.data.schema import to_table
from dagrpo.rollout.mixture import Mixture
from dagrpo.rollout.prompts import prompt_indices
from dagrpo.rollout.table import without_discarded
from dagrpo.trainer.config.runtime import SftRuntime
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.run import SftRun, TrainingRun
from dagrpo.trainer.sft import fine_tune
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tables import read_parquet, write_parquet

STEPS, PROMPTS, SUMS, FIVES = 5, 4, 10, 6
SHARES = {"arithmetic": 0.6, "fives": 0.4}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"mini_batches": 2},
    "stale": {"staleness": 1},
    "dynamic": {"dynamic_sampling": {"max_rounds": 2, "oversampling": 1.5}, "mini_batches": 2},
    "everything": {"staleness": 1, "dynamic_sampling": {"max_rounds": 2, "oversampling": 1.5}, "mini_batches": 2},
    "retiring": {"retire_at": 0.75, "staleness": 1},
}


class Solving(runs.ScriptedEngine):
    """One that answers 5 in every other completion."""

    tokenizer: PreTrainedTokenizerBase

    def _written(self, request: SamplingRequest) -> list[int]:
        if request.seed % 2:
            return super()._written(request)
        return list(self.tokenizer("#### 5", add_special_tokens=False)["input_ids"])


@pytest.fixture(scope="module")
def fives(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The train split of a second task, whose answers are all 5."""
    Solving.tokenizer = load_tokenizer(inputs[0])
    rows = [replace(runs.task_row(n), task="fives", question=f"5+{n}", ground_truth="5") for n in range(FIVES)]
    path = tmp_path_factory.mktemp("fives") / "train.parquet"
    write_parquet(path, to_table(rows))
    return path


def _mixed(inputs: tuple[Path, Path], fives: Path, folder: Path, kind: str = "plain") -> TrainingRun:
    run = runs.training_run(inputs, folder / "state", folder, steps=STEPS, save_every=1)
    run = replace(run, train_splits={"arithmetic": inputs[1], "fives": fives}, shares=SHARES)
    return runs.changed(run, training={"gates": {"coincidence": 0}, **KINDS[kind]})


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], fives: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingRun]:
    """Runs without an interruption, by kind."""
    made = {kind: _mixed(inputs, fives, tmp_path_factory.mktemp(kind), kind) for kind in KINDS}
    for run in made.values():
        runs.execute(run, Solving)
    return made


def _groups(run: TrainingRun) -> Iterator[pa.Table]:
    """The first sample of every group of each step."""
    size = run.training.samples_per_prompt
    for step in range(1, STEPS + 1):
        table = read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet"))
        yield table.take([*range(0, table.num_rows, size)])


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_has_the_groups_of_each_task_that_are_due(kind: str, whole: dict[str, TrainingRun]) -> None:
    mixture = Mixture({"arithmetic": SUMS, "fives": FIVES}, SHARES, PROMPTS)
    for step, table in enumerate(_groups(whole[kind])):
        assert Counter(without_discarded(table)["task"].to_pylist()) == mixture.counts(step)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "retiring"])
def test_each_task_goes_through_its_own_epochs(kind: str, whole: dict[str, TrainingRun]) -> None:
    drawn: dict[str, list[int]] = {"arithmetic": [], "fives": []}
    for table in _groups(whole[kind]):
        for task, row in zip(table["task"].to_pylist(), table["problem_index"].to_pylist(), strict=True):
            drawn[task].append(row - (SUMS if task == "fives" else 0))
    seed, metrics = whole[kind].seed, read_parquet(whole[kind].metrics)
    for task, size in (("arithmetic", SUMS), ("fives", FIVES)):
        assert drawn[task] == prompt_indices(seed, 0, len(drawn[task]), size, task=task)
        assert metrics[f"task/{task}/epoch"][-1].as_py() == len(drawn[task]) / size


def test_some_problems_of_a_task_retire_and_are_drawn_no_more(whole: dict[str, TrainingRun]) -> None:
    assert max(read_parquet(whole["retiring"].metrics)["rollout/retired_prompts"].to_pylist()) > 0
    tables = [*_groups(whole["retiring"])]
    size = whole["retiring"].training.samples_per_prompt
    retired = set[int]()
    for step, table in enumerate(tables, start=1):
        assert not retired & {*table["problem_index"].to_pylist()} or step == 2, "sampled ahead"
        right = read_parquet(whole["retiring"].rollouts.with_name(f"step_{step:05d}.parquet"))["correct"].to_pylist()
        shares = [sum(right[start : start + size]) / size for start in range(0, len(right), size)]
        retired |= {row for row, share in zip(table["problem_index"].to_pylist(), shares, strict=True) if share >= 0.75}


def test_each_task_has_its_own_figures(whole: dict[str, TrainingRun]) -> None:
    run = whole["plain"]
    for step, figures in enumerate(read_parquet(run.metrics).to_pylist(), start=1):
        table = read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet")).to_pylist()
        for task in SHARES:
            own = [row for row in table if row["task"] == task]
            of_task = {name.split("/")[-1]: value for name, value in figures.items() if f"task/{task}/" in name}
            size = run.training.samples_per_prompt
            groups = [[row["reward"] for row in own[start : start + size]] for start in range(0, len(own), size)]
            assert of_task["groups"] == len(groups)
            assert of_task["reward_mean"] == pytest.approx(np.mean([row["reward"] for row in own]))
            assert of_task["correct_fraction"] == np.mean([row["correct"] for row in own])
            assert of_task["tokens_mean"] == np.mean([row["completion_tokens"] for row in own])
            assert of_task["no_signal_fraction"] == np.mean([len(set(rewards)) == 1 for rewards in groups])
        tokens = [sum(row["completion_tokens"] for row in table if row["task"] == task) for task in SHARES]
        entropies = [figures[f"task/{task}/entropy"] for task in SHARES]
        assert np.average(entropies, weights=tokens) == pytest.approx(figures["policy/entropy"])


CHOSEN = [("plain", 3), ("stale", 2), ("dynamic", 3), ("everything", 3), ("retiring", 4)]


@pytest.mark.parametrize(("kind", "killed_at"), everyday(CHOSEN, product(KINDS, range(1, STEPS))))
def test_a_killed_run_leaves_the_bytes_of_one_that_was_not(
    kind: str, killed_at: int, inputs: tuple[Path, Path], fives: Path, whole: dict[str, TrainingRun], tmp_path: Path
) -> None:
    run = _mixed(inputs, fives, tmp_path, kind)
    runs.execute(run, Solving, stop=lambda step: step == killed_at)
    runs.execute(run, Solving)
    assert runs.bytes_of(run) == runs.bytes_of(whole[kind])


def _train(world: World, inputs: tuple[Path, Path], fives: Path, out: Path) -> None:
    Solving.tokenizer = load_tokenizer(inputs[0])
    runs.execute(_mixed(inputs, fives, out, "dynamic"), Solving, world=world)


@pytest.mark.nightly
def test_two_processes_draw_what_one_draws(
    inputs: tuple[Path, Path], fives: Path, whole: dict[str, TrainingRun], tmp_path: Path
) -> None:
    runs.launch(2, _train, inputs, fives, tmp_path)
    together = replace(whole["dynamic"], rollouts=tmp_path / "rollouts" / "manifest.json")
    alone, both = (
        [table["problem_index"].to_pylist() for table in _groups(run)] for run in (whole["dynamic"], together)
    )
    assert both[0] == alone[0]
    assert [len(step) for step in both] == [len(step) for step in alone]
    figures = [read_parquet(path) for path in (whole["dynamic"].metrics, tmp_path / "metrics.parquet")]
    assert figures[0].column_names == figures[1].column_names
    entropies = [table["task/fives/entropy"].to_pylist() for table in figures]
    assert entropies[1] == pytest.approx(entropies[0], rel=1e-3)


def test_a_task_of_which_a_step_has_no_prompt_has_no_figure_there(
    inputs: tuple[Path, Path], fives: Path, tmp_path: Path
) -> None:
    run = replace(_mixed(inputs, fives, tmp_path), shares={"arithmetic": 0.9, "fives": 0.1})
    runs.execute(run, Solving)
    metrics = read_parquet(run.metrics)
    assert metrics["task/fives/groups"].to_pylist() == [0, 0, 1, 0, 1]
    assert np.isnan(metrics["task/fives/reward_mean"].to_numpy()).tolist() == [True, True, False, True, False]


def test_a_mixture_of_one_task_is_that_task_to_the_byte(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """So that a ratio of 1:0, whose second task the trainer never sees, is a control."""
    alone = runs.training_run(inputs, tmp_path / "state", tmp_path / "alone", steps=2)
    mixed = runs.training_run(inputs, tmp_path / "other", tmp_path / "mixed", steps=2)
    mixed = replace(mixed, shares={"arithmetic": 1.0})
    runs.execute(alone)
    runs.execute(mixed)
    assert runs.bytes_of(mixed) == runs.bytes_of(alone)


def test_a_task_with_fewer_problems_than_its_part_of_a_batch_is_named(
    inputs: tuple[Path, Path], fives: Path, tmp_path: Path
) -> None:
    run = runs.changed(_mixed(inputs, fives, tmp_path), training={"prompts_per_step": 16, "mini_batches": 1})
    with pytest.raises(UserError, match=r"fives.*has 6 problems .*fewer than the 7 that are its part of .* \(16\)"):
        runs.execute(run)


def _tuning(inputs: tuple[Path, Path], fives: Path, out: Path) -> SftRun:
    return SftRun(
        model=inputs[0].with_name("model"),
        train_splits={"arithmetic": inputs[1], "fives": fives},
        shares={"arithmetic": 0.5, "fives": 0.5},
        seed=3,
        sft=Sft(steps=4, batch_size=6, learning_rate=1e-2, learning_rate_warmup_steps=2),
        runtime=SftRuntime(save_every=2),
        state=out / "state",
        tuned=out / "tuned",
    )


def _tuned(run: SftRun, stop: int = 0) -> list[dict[str, float]]:
    reported: list[dict[str, float]] = []

    def report(step: int, metrics: Mapping[str, float]) -> None:
        reported.append(dict(metrics))
        if step == stop:
            raise runs.Interrupted

    with suppress(runs.Interrupted):
        fine_tune(run, report, single_process())
    return reported


def test_fine_tuning_learns_as_many_rows_of_each_task(inputs: tuple[Path, Path], fives: Path, tmp_path: Path) -> None:
    """The first step is that of a single task with just these rows; a killed run leaves the same bytes."""
    run = _tuning(inputs, fives, tmp_path / "whole")
    reported = _tuned(run)
    tables = {task: read_parquet(path) for task, path in run.train_splits.items()}
    drawn = {task: prompt_indices(3, 0, 3, table.num_rows, task=task) for task, table in tables.items()}
    rows = pa.concat_tables([table.take(drawn[task]) for task, table in tables.items()])
    write_parquet(tmp_path / "first.parquet", rows)
    out = tmp_path / "alone"
    alone = replace(run, train_splits={"first": tmp_path / "first.parquet"}, shares={}, state=out, tuned=out / "tuned")
    first = _tuned(replace(alone, sft=run.sft.model_copy(update={"steps": 1})))[0]
    assert reported[0]["sft/loss"] == pytest.approx(first["sft/loss"], rel=1e-5)
    assert reported[0]["sft/grad_norm"] == pytest.approx(first["sft/grad_norm"], rel=1e-4)
    killed = _tuning(inputs, fives, tmp_path / "killed")
    _tuned(killed, stop=3)
    assert _tuned(killed) == reported
    assert (killed.tuned / MANIFEST).read_bytes() == (run.tuned / MANIFEST).read_bytes()
