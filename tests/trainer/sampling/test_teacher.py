"""A teacher in whole runs with scripted engines: what it is asked, what is kept of it, and that nothing else changes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import pictures
from tests.pictures import picture
from tests.rollout.scripted_engine import ScriptedEngine
from tests.trainer import runs, vision
from tests.trainer.attempts import attempt, scored

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt, TokenSample
from dagrpo.models.fresh import make_fresh
from dagrpo.rollout.config import Rollout
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling.teacher import (
    DIVERGENCE,
    FAR_FRACTION,
    PromptsWithSolution,
    Teacher,
    TeacherPrompt,
    plain_prompt,
    require_same_pictures,
    teacher_metrics,
)
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import read_parquet
from dagrpo_replay.half_steps import RolloutHalf, update_from
from dagrpo_replay.recomputation import replay
from dagrpo_replay.recorded_run import unfinished

Inputs = tuple[Path, Path]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same vocabulary."""
    folder = tmp_path_factory.mktemp("teacher") / "teacher"
    make_fresh(folder, runs.SHAPE.model_copy(update={"seed": 5}), torch.float32)
    return folder


def _run(inputs: Inputs, teacher: Path, out: Path, steps: int = 3, **of_teacher: Any) -> TrainingRun:
    """One that learns from the teacher alone."""
    source = of_teacher or {"source": "folder", "folder": str(teacher)}
    algorithm = Algorithm.model_validate({"loss": {"name": "on_policy_distillation"}, "teacher": source})
    return replace(runs.training_run(inputs, out / "state", out, steps), algorithm=algorithm, teacher=teacher, seed=11)


@pytest.fixture(scope="module")
def whole(inputs: Inputs, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    run = _run(inputs, teacher, tmp_path_factory.mktemp("whole"))
    asked, reported = runs.execute(run)
    first, second = (["generate", "score", f"load step_{step}"] for step in (1, 2))
    assert asked == ["load step_0", "load teacher", *first, *second, "generate", "score"]
    assert all(figures["timing/teacher_seconds"] > 0 for _, figures in reported)
    return run


def _tables(run: TrainingRun) -> dict[int, Path]:
    return {step: run.rollouts.with_name(f"step_{step:05d}.parquet") for step in range(1, run.training.steps + 1)}


def test_the_divergence_is_recorded_token_by_token_and_its_mean_is_the_metric(whole: TrainingRun) -> None:
    divergences = read_parquet(whole.metrics)[DIVERGENCE].to_pylist()
    for step, path in _tables(whole).items():
        rows = read_parquet(path).to_pylist()
        columns = ("rollout_logprobs", "logprob_differences", "teacher_logprobs")
        values = [each for row in rows for each in zip(*map(row.get, columns), strict=True)]
        pairs = [(engine + difference, teacher) for engine, difference, teacher in values]
        assert len(pairs) == sum(len(row["completion_ids"]) for row in rows)
        mean = sum(policy - teacher for policy, teacher in pairs) / len(pairs)
        assert divergences[step - 1] == pytest.approx(mean, abs=1e-6)


def test_the_policy_learns_without_a_reward(inputs: Inputs, teacher: Path, tmp_path: Path) -> None:
    """Its initial weights are another model's: what it is taught moves it, whatever rewards say."""
    run = _run(inputs, teacher, tmp_path, steps=1)
    runs.execute(run)
    other = run.reward.model_copy(update={"permuted": True})
    permuted = replace(_run(inputs, teacher, tmp_path / "permuted", steps=1), reward=other)
    runs.execute(permuted)
    assert read_parquet(run.metrics)["policy/grad_norm"].to_pylist()[0] > 0.01
    assert runs.bytes_of(run)["policy"] == runs.bytes_of(permuted)["policy"]


@pytest.mark.nightly
def test_a_run_that_was_interrupted_leaves_the_bytes_of_one_that_was_not(
    inputs: Inputs, teacher: Path, whole: TrainingRun, tmp_path: Path
) -> None:
    run = _run(inputs, teacher, tmp_path)
    runs.execute(run, stop=lambda step: step == 3)
    asked, _ = runs.execute(run)
    assert asked == ["load step_2", "load teacher", "generate", "score"]
    assert runs.bytes_of(run) == runs.bytes_of(whole)


def test_the_initial_policy_is_at_no_distance_from_itself(inputs: Inputs, teacher: Path, tmp_path: Path) -> None:
    algorithm = {"terms": {"distillation": {"coefficient": 0.1}}, "teacher": {"source": "initial"}}
    run = _run(inputs, teacher, tmp_path, steps=2)
    run = replace(run, algorithm=Algorithm.model_validate(algorithm))
    runs.execute(run)
    assert read_parquet(run.metrics)[DIVERGENCE].to_pylist()[0] == pytest.approx(0.0, abs=1e-6)
    assert read_parquet(run.metrics)[FAR_FRACTION].to_pylist()[0] == 0.0


def test_recorded_steps_are_computed_again_without_a_teacher(whole: TrainingRun) -> None:
    try:
        checks = replay(unfinished(whole.policy.parent, whole.state), [3], single_process())
    finally:
        torch.use_deterministic_algorithms(False)
    assert [(check.step, check.difference) for check in checks] == [(1, None), (2, None), (3, None)]


def test_the_halves_of_a_step_are_those_of_a_whole_one(
    inputs: Inputs, teacher: Path, whole: TrainingRun, tmp_path: Path
) -> None:
    run = _run(inputs, teacher, tmp_path, steps=1)
    asked: list[str] = []
    half = RolloutHalf(run, single_process(), None, runs.opener(asked))
    assert [step for step, _ in half.write([1], run.rollouts.parent)] == [1]
    assert asked == ["load step_0", "load teacher", "generate", "score"]
    assert _tables(run)[1].read_bytes() == _tables(whole)[1].read_bytes()
    ((_, figures),) = update_from(run, _tables(run), None, single_process())
    assert figures["policy/grad_norm"] == read_parquet(whole.metrics)["policy/grad_norm"].to_pylist()[0]


PROMPT = (5, 6)
PROBLEM = Prompt(index=3, row=runs.task_row(3), text="", token_ids=PROMPT)
# A turn of 7 and 8, a tool's result 9, and a turn of 4.
SAMPLE = TokenSample(
    token_ids=(*PROMPT, 7, 8, 9, 4),
    loss_mask=(False, False, True, True, False, True),
    logprobs=(0.0, 0.0, -1.0, -1.0, 0.0, -1.0),
    weight_version="v",
)


def _longer(problem: Prompt) -> tuple[int, ...]:
    return (1, 2, 3, *problem.token_ids)


def _rollouts(*samples: TokenSample, problem: Prompt = PROBLEM) -> Rollouts:
    graded = scored(attempt(3, *samples, prompt=problem), 0.0, "missing")
    return Rollouts(step=0, group_size=1, graded=(graded,), rewards=torch.zeros(1), components={})


@pytest.mark.parametrize("prompt", [plain_prompt, _longer])
def test_the_teacher_is_asked_for_what_the_policy_wrote_behind_its_own_prompt(prompt: TeacherPrompt) -> None:
    """The scripted engine gives a token the logprob -number / 10: of 7, 8 and 4, not of the tool's 9."""
    teacher = Teacher(engine=ScriptedEngine(), prompt=prompt, lockstep=True, longest=100)
    scored = teacher.score(_rollouts(SAMPLE, replace(SAMPLE, token_ids=(*PROMPT, 1, 2, 3, 3)))).teacher_logprobs
    assert scored is not None
    assert scored.tolist() == pytest.approx([-0.7, -0.8, -0.4, -0.1, -0.2, -0.3])


def test_a_sequence_that_is_too_long_or_begins_otherwise_is_refused() -> None:
    short = Teacher(engine=ScriptedEngine(), prompt=plain_prompt, lockstep=True, longest=6)
    with pytest.raises(UserError, match="would read 6 tokens, and it takes less than 6"):
        short.score(_rollouts(SAMPLE))
    pictured = replace(PROBLEM, row=replace(PROBLEM.row, images=(picture(),)))
    with pytest.raises(UserError, match=r"or lower model\.max_pixels so that its pictures take fewer, or take a"):
        short.score(_rollouts(SAMPLE, problem=pictured))
    longer = Teacher(engine=ScriptedEngine(), prompt=_longer, lockstep=True, longest=100)
    with pytest.raises(UserError, match="row 3: the chat template rewrites the prompt"):
        longer.score(_rollouts(replace(SAMPLE, token_ids=(0, 0, 7, 8, 9, 4))))


def test_a_prompt_with_solution_has_it_behind_the_problem(inputs: Inputs) -> None:
    tokenizer = load_tokenizer(inputs[0])
    prompts = PromptRenderer(tokenizer, Rollout())
    problem = prompts.prompt(3, runs.task_row(3))
    longer = PromptsWithSolution(prompts, " ({solution})")(problem)
    assert tokenizer.decode(longer) == "<|user|>1+3=? (#### 4)<|end|><|assistant|>"
    without = replace(problem, index=4, row=replace(problem.row, answer=" "))
    with pytest.raises(UserError, match="arithmetic train row 3 has no solution, which the teacher is to read"):
        PromptsWithSolution(prompts, "{solution}")(without)


def test_the_metrics_are_the_mean_log_ratio_and_the_share_that_is_far() -> None:
    """Log-ratios 0.5, 2.5 and -3: the mean is 0, and one of three is above 2."""
    rollouts = replace(_rollouts(SAMPLE), teacher_logprobs=torch.tensor([-1.5, -3.5, 2.0]))
    metrics = teacher_metrics(rollouts, torch.full((3,), -1.0))
    assert metrics == {DIVERGENCE: pytest.approx(0.0), FAR_FRACTION: pytest.approx(1 / 3)}
    assert teacher_metrics(replace(rollouts, teacher_logprobs=None), torch.zeros(3)) == {}


def _shown() -> Prompt:
    prompts = PromptRenderer(pictures.TOKENIZER, Rollout(), pictures.PROCESSOR)
    return prompts.prompt(3, runs.example_with_pictures(3, picture(160, 160)))


def test_a_teacher_of_text_is_refused_where_a_problem_shows_a_picture(teacher: Path) -> None:
    with pytest.raises(UserError, match="takes text alone, and arithmetic row 3 shows pictures, which it is to read"):
        require_same_pictures(teacher, [_shown()])
    require_same_pictures(teacher, [])


def test_a_teacher_that_sees_a_picture_in_another_size_is_refused(tmp_path: Path) -> None:
    """Of 16 tokens at most, as the policy's, but of 8 pixels a side instead of 20."""
    other = vision.settings(tmp_path, "qwen3_vl")
    require_same_pictures(other, [_shown()])
    limits = json.loads((other / "preprocessor_config.json").read_text())
    (other / "preprocessor_config.json").write_text(json.dumps(limits | {"max_pixels": 4 * 64}))
    with pytest.raises(UserError, match=r"row 3: its pictures take 16 tokens of the policy's prompt, and 4 by the pre"):
        require_same_pictures(other, [_shown()])
