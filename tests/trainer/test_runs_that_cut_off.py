"""Whole runs whose rounds end when the batch is full: what they record, and that they go on where they were interrupted."""

import asyncio
import os
import signal
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from tests.everyday import everyday
from tests.trainer import runs
from tests.trainer.free_engine import FreeEngine

from dagrpo.core.errors import Terminated
from dagrpo.engine.interface import Aborted
from dagrpo.rollout.prompts import prompt_indices
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state import states
from dagrpo.utils.tables import read_parquet

pytestmark = pytest.mark.usefixtures("stage_handlers")
Inputs = tuple[Path, Path]
STEPS, PROMPTS, SAMPLES = 5, 3, 2
CUTTING: dict[str, Any] = {"oversampling": 2.0, "max_aborts": 2, "spread_of": None}
PARTIAL: dict[str, Any] = {"dynamic_sampling": {**CUTTING, "partial_rollouts": True}}


def _run(inputs: Inputs, folder: Path, **training: Any) -> TrainingRun:
    run = runs.training_run(inputs, folder / "state", folder, STEPS, save_every=1)
    own = {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "dynamic_sampling": CUTTING} | training
    return runs.changed(run, training=own, rollout={"deterministic": False})


def _finished(run: TrainingRun) -> list[int]:
    """The rows of all groups that have finished."""
    tables = [read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet")) for step in range(1, STEPS + 1)]
    return [row for table in tables for row in table["problem_index"].to_pylist()[::SAMPLES]]


def _require_nothing_is_lost(run: TrainingRun) -> None:
    """The groups that have finished and those that are to be drawn next are the places of the row, each once."""
    drawn = states.at(run.state, STEPS).notes["drawn"]
    row = [prompt_indices(run.seed, place, 1, 10)[0] for place in range(drawn["position"])]
    assert sorted(_finished(run) + [index for index, _ in drawn["cut_off"]]) == sorted(row)


@pytest.mark.parametrize(
    "changes",
    everyday([PARTIAL], [{}, PARTIAL, {"staleness": 1}, {"retire_at": 0.5}, {"staleness": 1} | PARTIAL]),
    ids=str,
)
def test_a_run_that_was_killed_goes_on_without_losing_a_prompt(
    inputs: Inputs, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = _run(inputs, tmp_path, **changes)
    runs.execute(run, FreeEngine, stop=lambda step: step == 3)
    asked, reported = runs.execute(run, FreeEngine)
    _require_nothing_is_lost(run)
    assert any(each.startswith("abort") for each in asked)
    metrics = read_parquet(run.metrics).to_pylist()
    assert max(row["rollout/cut_off_groups"] for row in metrics) > 0
    assert sum(row["rollout/cut_off_tokens"] for row in metrics) > 0
    for row in metrics:
        sampled = read_parquet(run.rollouts.with_name(f"step_{row['step']:05d}.parquet")).num_rows / SAMPLES
        assert sampled == PROMPTS + row["rollout/discarded_groups"], "what was cut off is in no record"
    assert reported[-1][1]["timing/rewards_seconds"] == 0, "it is no time of its own"


def test_what_is_cut_off_goes_on_in_the_next_step_by_its_tokens_and_its_seed(inputs: Inputs, tmp_path: Path) -> None:
    """Killed after each step: parts come from the saved state."""
    run = _run(inputs, tmp_path, **PARTIAL)
    for last in range(1, STEPS):
        runs.execute(run, FreeEngine, stop=partial(int.__eq__, last))
    runs.execute(run, FreeEngine)
    tables = [read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet")) for step in range(1, STEPS + 1)]
    rows = [row for table in tables for row in table.to_pylist()]
    resumed = [row for row in rows if row["earlier_versions"]]
    assert resumed
    began = {
        sampling_seed(run.seed, "rollout", step, position, sample): step
        for step in range(STEPS)
        for position in range(2 * PROMPTS)
        for sample in range(SAMPLES)
    }
    for row in resumed:
        (version, tokens), *_ = row["earlier_versions"]
        assert version == f"step_{began[row['sampling_seed']]}", "the weights of the step that began it"
        assert tokens < row["completion_tokens"]
        assert row["weight_version"] == f"step_{row['step'] - 1}"
    metrics = read_parquet(run.metrics).to_pylist()
    assert sum(row["rollout/resumed_trajectories"] for row in metrics) >= sum(not row["discarded"] for row in resumed)
    for row in metrics:
        own = [each for each in rows if each["step"] == row["step"] and not each["discarded"]]
        of_step = f"step_{row['step'] - 1}"
        old = sum(
            sum(n for _, n in each["earlier_versions"])
            if each["weight_version"] == of_step
            else each["completion_tokens"]
            for each in own
        )
        assert row["rollout/earlier_tokens_fraction"] == pytest.approx(
            old / sum(each["completion_tokens"] for each in own)
        )
        assert row["rollout/oldest_tokens_age"] <= CUTTING["max_aborts"]


@pytest.mark.nightly
def test_greedy_baselines_are_those_of_the_groups_that_have_finished(inputs: Inputs, tmp_path: Path) -> None:
    run = runs.changed(_run(inputs, tmp_path), algorithm={"advantage": {"name": "remax"}})
    _, reported = runs.execute(run, FreeEngine)
    _require_nothing_is_lost(run)
    assert len(reported) == STEPS
    greedy = (
        read_parquet(run.rollouts.with_name("step_00001.parquet"))
        .filter(~pc.field("discarded"))["greedy_reward"]
        .to_pylist()
    )
    assert len(greedy) == PROMPTS * SAMPLES
    assert None not in greedy


class ToldWhileAborting(FreeEngine):
    """An engine in which the run is told to stop when groups are cut off for the third time."""

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        if sum(each.startswith("abort") for each in self.asked) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        return await super().abort(sessions)


@pytest.mark.nightly
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_that_is_told_to_stop_while_it_cuts_groups_off_goes_on_with_their_prompts(
    inputs: Inputs, tmp_path: Path, staleness: int
) -> None:
    run = _run(inputs, tmp_path, staleness=staleness, dynamic_sampling=CUTTING | {"max_aborts": 1000})
    with pytest.raises(Terminated):
        runs.execute(run, ToldWhileAborting)
    assert [*run.state.glob("step_*")], "the steps before are saved"
    assert not run.rollouts.exists(), "it has not come to its end"
    runs.execute(run, FreeEngine)
    _require_nothing_is_lost(run)
