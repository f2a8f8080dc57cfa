"""Whole runs with a scripted engine that draw more prompts than a batch has, retire some, and leave groups out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.everyday import everyday
from tests.trainer import runs

from dagrpo.checkpoints.compare import compare
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.prompts import prompt_indices
from dagrpo.rollout.table import without_discarded
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import read_parquet

STEPS = 4
PROMPTS = 3
ROUNDS = 3
# The scripted policy is never right; a completion of six tokens, the longest, costs 1, and all others nothing.
LENGTH_ONLY = Reward.model_validate({"components": {"overlong": {"weight": 1.0, "buffer": 1}}})


def _run(inputs: tuple[Path, Path], state: Path, out: Path, **training: Any) -> TrainingRun:
    values = {
        "steps": STEPS,
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": 2,
        "learning_rate": 1e-2,
        "dynamic_sampling": {"max_rounds": ROUNDS},
    }
    run = runs.training_run(inputs, state, out, steps=STEPS)
    return replace(run, training=Training.model_validate(values | training), reward=LENGTH_ONLY)


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    out = tmp_path_factory.mktemp("whole")
    run = _run(inputs, out / "state", out)
    runs.execute(run)
    return run


def _rollouts(run: TrainingRun, step: int) -> pa.Table:
    return read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet"))


def _consumed(run: TrainingRun) -> list[int]:
    """The rows of the split in the order in which the run has drawn them, one for each group."""
    tables = [_rollouts(run, step) for step in range(1, STEPS + 1)]
    return [index for table in tables for index in table["problem_index"].to_pylist()[::2]]


def test_prompts_are_drawn_one_after_the_other_over_rounds_and_steps(whole: TrainingRun) -> None:
    consumed = _consumed(whole)
    assert len(consumed) > STEPS * PROMPTS, "some rounds were needed"
    assert consumed == [prompt_indices(7, step, 1, 10)[0] for step in range(len(consumed))]


def test_every_batch_has_its_groups_and_what_was_thrown_away_stays_in_the_rollouts(whole: TrainingRun) -> None:
    metrics = read_parquet(whole.metrics).to_pylist()
    assert max(row["rollout/rounds"] for row in metrics) > 1
    for row in metrics:
        table = _rollouts(whole, row["step"])
        kept, discarded = ([each for each in table.to_pylist() if each["discarded"] == flag] for flag in (False, True))
        assert len(kept) == 2 * PROMPTS
        assert len(discarded) == 2 * row["rollout/discarded_groups"]
        assert row["rollout/discarded_fraction"] == pytest.approx(len(discarded) / table.num_rows)
        assert {(each["advantage"], *each["logprob_differences"], *each["token_advantages"]) for each in discarded} <= {
            (0.0,)
        }
        assert all(len(each["logprob_differences"]) == len(each["completion_ids"]) for each in kept)
        assert row["reward/mean"] == pytest.approx(sum(each["reward"] for each in kept) / len(kept))
        with_spread = {one["problem_index"] for one in kept for other in kept if _differ(one, other)}
        if row["rollout/rounds"] < ROUNDS:
            assert len(with_spread) == PROMPTS


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["problem_index"] == other["problem_index"] and one["reward"] != other["reward"])


def test_seeds_go_on_over_the_rounds_of_a_step(whole: TrainingRun) -> None:
    for step in range(1, STEPS + 1):
        seeds = _rollouts(whole, step)["sampling_seed"].to_pylist()
        assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("killed_at", everyday([3], [2, 3]))
def test_a_killed_run_goes_on_with_the_prompts_of_one_that_was_not(
    killed_at: int, inputs: tuple[Path, Path], whole: TrainingRun, tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path / "state", tmp_path)
    runs.execute(run, stop=lambda step: step == killed_at)
    runs.execute(run)
    assert _consumed(run) == _consumed(whole)
    assert runs.bytes_of(run) == runs.bytes_of(whole)


def test_permuted_rewards_are_those_of_the_batch_that_true_rewards_have_chosen(
    inputs: tuple[Path, Path], whole: TrainingRun, tmp_path: Path
) -> None:
    permuted = Reward.model_validate({**LENGTH_ONLY.model_dump(), "permuted": True})
    run = replace(_run(inputs, tmp_path / "state", tmp_path, steps=1), reward=permuted)
    runs.execute(run)
    own, shuffled = (without_discarded(_rollouts(each, 1)) for each in (whole, run))
    assert shuffled["problem_index"] == own["problem_index"]
    assert shuffled["reward"] != own["reward"]
    assert sorted(shuffled["reward"].to_pylist()) == sorted(own["reward"].to_pylist())


def _with_everything(inputs: tuple[Path, Path], out: Path) -> TrainingRun:
    """One round, so that batches are filled up with groups that the filter then leaves out; tokens drawn from a few."""
    one_round = {"max_rounds": 1, "oversampling": 1.1}
    run = _run(inputs, out / "state", out, dynamic_sampling=one_round, zero_variance_filter=True, prompts_per_step=4)
    return replace(run, rollout=Rollout(max_new_tokens=runs.MAX_NEW_TOKENS, top_p=0.9, top_k=5))


def _train(world: World, inputs: tuple[Path, Path], out: Path) -> None:
    runs.execute(_with_everything(inputs, out), world=world)


@pytest.mark.nightly
def test_two_processes_draw_what_one_draws_and_learn_the_same(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    alone, together = (_with_everything(inputs, tmp_path / name) for name in ("alone", "together"))
    runs.execute(alone)
    runs.launch(2, _train, inputs, tmp_path / "together")
    assert max(read_parquet(alone.metrics)["rollout/groups_without_spread"].to_pylist()) > 0, "something was filtered"
    assert _consumed(together) == _consumed(alone)
    assert all((d.largest or 0.0) < 2e-4 for d in compare(together.policy, alone.policy).differences)
