"""Mixtures of tasks with Megatron-LM's stand-in: our order, each row graded by its own task, figures of each task."""

from pathlib import Path

import pytest
from tests.trainer.foreign_runs import STAND_INS, mixture_in, train

from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet
from dagrpo_foreign.files import drawn_prompts, write_inputs

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("shares", [{"arithmetic": 0.75, "boxed": 0.25}, {}])
def test_prompts_come_in_our_order_and_each_task_has_its_figures(shares: dict[str, float], tmp_path: Path) -> None:
    changes = {
        "training": {"backend": {"name": "megatron_lm"}},
        "runtime": {"backend": {"source": str(STAND_INS["megatron_lm"])}},
    }
    run = mixture_in(tmp_path, changes, shares)
    train(run)
    ours = [prompt.index for prompt in drawn_prompts(run, write_inputs(run, tmp_path / "again").prompts)]
    assert read_json(run.state / "agent.json")["order"] == ours
    table = read_parquet(run.metrics).to_pydict()
    steps = [ours[start : start + 4] for start in range(0, 16, 4)]
    assert table["task/boxed/groups"] == [float(sum(row >= 10 for row in step)) for step in steps]
    assert table["task/arithmetic/groups"] == [float(sum(row < 10 for row in step)) for step in steps]
    whole = zip(
        table["reward/mean"], table["task/arithmetic/reward_mean"], table["task/boxed/reward_mean"], strict=True
    )
    for (mean, *of_tasks), step in zip(whole, steps, strict=True):
        counts = [sum(row < 10 for row in step), sum(row >= 10 for row in step)]
        weighed = sum(count * reward for count, reward in zip(counts, of_tasks, strict=True) if count)
        assert mean == pytest.approx(weighed / len(step))
