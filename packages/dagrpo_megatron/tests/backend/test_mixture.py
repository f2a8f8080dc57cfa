"""Mixtures of tasks with Megatron-LM's stand-in: our order, each row graded by its own task, figures of each task."""

from pathlib import Path

import pytest
from tests.trainer.foreign_runs import STAND_INS, mixture_in, train

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.trajectory import Prompt
from dagrpo.rewards.grading import Grader
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet
from dagrpo_foreign.files import drawn_prompts, write_inputs
from dagrpo_megatron.backend.grading import Responses

CHANGES = {
    "training": {"backend": {"name": "megatron_lm"}},
    "runtime": {"backend": {"source": str(STAND_INS["megatron_lm"])}},
}


def test_each_row_is_graded_by_the_verifier_of_its_task(tmp_path: Path) -> None:
    run = mixture_in(tmp_path, CHANGES, {})
    inputs, tokenizer = write_inputs(run, tmp_path / "state"), load_tokenizer(run.initial)
    sections = {name: getattr(run, name).model_dump(mode="json") for name in ("rollout", "reward", "training")}
    job = {"model": str(inputs.model), "train_split": str(inputs.rows), **sections}
    with Grader(10.0) as grader:
        responses = Responses(job, grader)

        def right(prompt: Prompt, text: str) -> float:
            tokens = tokenizer.encode(text, add_special_tokens=False)
            return responses.answer({"index": prompt.index, "prompt": prompt.token_ids, "response": tokens})["acc"]

        found = {
            (prompt.row.task, form): right(prompt, form.format(prompt.row.ground_truth))
            for prompt in (inputs.prompts[3], inputs.prompts[13])  # both the row 3 of their task
            for form in ("#### {}", "\\boxed{{{}}}")
        }
    assert found == {
        ("arithmetic", "#### {}"): 1.0,
        ("arithmetic", "\\boxed{{{}}}"): 0.0,
        ("boxed", "#### {}"): 0.0,
        ("boxed", "\\boxed{{{}}}"): 1.0,
    }


@pytest.mark.nightly
@pytest.mark.parametrize("shares", [{"arithmetic": 0.75, "boxed": 0.25}, {}])
def test_prompts_come_in_our_order_and_each_task_has_its_figures(shares: dict[str, float], tmp_path: Path) -> None:
    run = mixture_in(tmp_path, CHANGES, shares)
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
