"""A run from which nothing can be learned says so, and one with numbers that are not finite skips updates."""

import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.everyday import everyday
from tests.trainer import runs
from tests.trainer.updates import rollouts, update_of, weight_sum

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.checks.no_signal import METRIC, NoSignal, SkippedSteps
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.optimizer import finite_everywhere
from dagrpo.trainer.update.stats import SKIPPED, finite_or_zero
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.tables import read_parquet

STEPS = Gates().steps_in_a_row


def _metrics(**own: float) -> dict[str, float]:
    same = {
        "rollout/groups_without_advantage": 1.0,
        "reward/accuracy": 0.0,
        "rollout/truncated_fraction": 0.0,
        "reward/missing_answer_fraction": 0.0,
        "reward/unverifiable_fraction": 0.0,
    }
    return same | own


def _said(capsys: pytest.CaptureFixture[str], steps: int, **own: float) -> list[str]:
    watched = NoSignal(Gates(), seed=3, max_new_tokens=20)
    for step in range(1, steps + 1):
        watched.count(_metrics(**own))
        watched.check(step)
    return capsys.readouterr().err.splitlines()


def test_a_task_of_a_mixture_without_signal_is_named_after_as_many_prompts_as_make_a_warning_for_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A quarter of the prompts are its, so that it takes four times as many steps; steps without any of them say nothing."""
    of_tasks = {"task/a/groups": 6.0, "task/a/no_signal_fraction": 0.5, "task/b/groups": 2.0}
    lost = {"rollout/groups_without_advantage": 0.5, **of_tasks, "task/b/no_signal_fraction": 1.0}
    said = _said(capsys, 4 * STEPS, **lost)
    assert len(said) == 1
    assert f"step {4 * STEPS}: in the last {8 * STEPS} prompts of the task b no completion is better" in said[0]
    assert not _said(capsys, 4 * STEPS - 1, **lost)
    assert not _said(capsys, 8 * STEPS, **lost | {"task/b/groups": 0.0, "task/a/groups": 8.0})
    assert not _said(capsys, 8 * STEPS, **lost | {"task/b/no_signal_fraction": 0.5})


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        ({"reward/accuracy": 1.0}, "all answers are right, so take harder problems"),
        ({}, "all answers are wrong, so take easier problems"),
        (
            {"rollout/truncated_fraction": 0.9},
            "90% of the completions are cut off at rollout.max_new_tokens (20), so raise it",
        ),
        ({"reward/missing_answer_fraction": 0.8}, "in 80% of the completions no answer is found"),
        # Of several the one that has to be mended first; a share below a half is no cause.
        (
            {"rollout/truncated_fraction": 0.9, "reward/missing_answer_fraction": 0.8},
            "90% of the completions are cut off at rollout.max_new_tokens (20)",
        ),
        ({"rollout/truncated_fraction": 0.9, "reward/accuracy": 1.0}, "all answers are right"),
        ({"rollout/truncated_fraction": 0.4, "reward/missing_answer_fraction": 0.4}, "all answers are wrong"),
        (
            {"rollout/truncated_fraction": 0.9, "reward/accuracy": 0.9},
            "the answers to a problem are all right or all wrong",
        ),
        (
            {"reward/accuracy": 0.5},
            "the answers to a problem are all right or all wrong, so raise training.samples_per_prompt",
        ),
    ],
)
def test_the_sentence_names_the_likeliest_cause(
    capsys: pytest.CaptureFixture[str], own: dict[str, float], cause: str
) -> None:
    (said,) = _said(capsys, STEPS, **own)
    assert cause in said


def test_it_is_said_again_only_after_as_many_steps_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert _said(capsys, STEPS - 1) == []
    assert len(_said(capsys, 2 * STEPS - 1)) == 1
    assert [line.partition(":")[0] for line in _said(capsys, 2 * STEPS)] == [
        f"train (seed 3), step {n}" for n in (STEPS, 2 * STEPS)
    ]


def test_one_problem_whose_samples_differ_begins_the_count_anew_and_a_share_that_is_left_open_is_not_watched() -> None:
    shares = [{"rollout/groups_without_advantage": share} for share in (1.0, 1.0, 0.97, 1.0)]
    for limit, counts in ((1.0, [1, 2, 0, 1]), (None, [0] * 4)):
        watched = NoSignal(Gates(without_advantage=limit), seed=3, max_new_tokens=20)
        assert [watched.count(_metrics(**own))[METRIC] for own in shares] == counts


def test_one_number_that_is_not_finite_is_enough() -> None:
    world = single_process()
    assert finite_everywhere(torch.tensor([1e38, -1e38, 0.0]), world)
    for wrong in (math.nan, math.inf, -math.inf):
        assert not finite_everywhere(torch.tensor([1.0, wrong]), world)
    assert finite_or_zero({"loss": math.nan, "kl": 0.5}) == {"loss": 0.0, "kl": 0.5}


def test_skipped_steps_are_counted_in_a_row_and_one_too_many_keeps_the_rollouts(tmp_path: Path) -> None:
    skipped, table = SkippedSteps(Gates(skipped_steps=2), tmp_path), pa.table({"reward": [math.nan]})
    for step, updates in enumerate((1.0, 1.0, 0.0, 1.0, 2.0), start=1):
        skipped.count({SKIPPED: updates})
        skipped.check(step, table)
    skipped.count({SKIPPED: 1.0})
    with pytest.raises(
        UserError, match=r"step 6: .* not finite in 3 steps in a row, .*skipped_steps allows 2"
    ) as caught:
        skipped.check(6, table)
    path = tmp_path / "refused" / "rollouts_step_00006.parquet"
    assert str(path) in str(caught.value)
    assert read_parquet(path).num_rows == 1


def _update_twice(world: World, initial: Path) -> list[dict[str, float]]:
    """Update on a batch whose first advantage, of a trajectory that rank 0 computes, is no number, then on a whole one."""
    policy, whole, seen = load_policy(initial, world), rollouts(0), []
    update = update_of(policy, world, Budget(sequences=3))  # two mini-batches
    assert whole.advantages is not None
    advantages = whole.advantages.clone()
    advantages[0] = math.nan
    for batch in (replace(whole, advantages=advantages), whole):
        stats = update.run(0, batch)
        seen.append({"skipped": stats.skipped, "norm": stats.grad_norm, "loss": stats.loss})
        seen[-1]["sum"] = weight_sum(policy, world)
    return seen


@pytest.mark.parametrize("processes", everyday([1], [1, 2]))
def test_a_reward_that_is_no_number_skips_its_mini_batch_in_every_rank(
    processes: int, inputs: tuple[Path, Path]
) -> None:
    alone = processes == 1
    first, *others = [_update_twice(single_process(), inputs[0])] if alone else runs.launch(2, _update_twice, inputs[0])
    assert [step["skipped"] for step in first] == [1, 0]  # of two mini-batches
    assert all(math.isfinite(value) for step in first for value in step.values())
    assert first[0]["norm"] > 0  # the other mini-batch was learned from
    assert first[0]["sum"] != first[1]["sum"]
    assert all(other == first for other in others)
