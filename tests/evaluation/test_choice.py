"""The choice of a policy by validation rows, and its interval."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.evaluation.test_sampling import SHAPE
from tests.report.synthetic import sampled_completions

import dagrpo.evaluation.choice as choice_module
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.kept import write
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.evaluation.choice import Choice, choose, chosen_by, read_choice, sentence, spread_of, with_choice
from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.statistics import Estimate, Floats, Resampling, wilson
from dagrpo.models.fresh import make_fresh
from dagrpo.pipeline.declaration import Job
from dagrpo.pipeline.stages import choose as choose_stage
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.tables import write_parquet

RESAMPLING = Resampling(confidence=0.95, draws=200, seed=0)
REPETITIONS = 400


def _spread(choice: Choice, metric: str) -> float:
    return spread_of([{"draws": choice.draws, "means": choice.means}], "sums", metric)


def _rows(*candidates: str) -> Floats:
    return np.array([[float(each) for each in own] for own in candidates])


def test_of_equal_candidates_the_earlier_is_chosen() -> None:
    choice = choose({"sums": {"greedy": _rows("1000", "1010", "0101")}}, RESAMPLING)
    assert (choice.best, choice.scores) == (1, (0.25, 0.5, 0.5))
    assert sum(choice.shares) == pytest.approx(1)


def test_each_task_counts_the_same_however_many_problems_it_has() -> None:
    many, few = _rows("11110000", "00000000"), _rows("00", "11")
    choice = choose({"many": {"greedy": many}, "few": {"greedy": few}}, RESAMPLING)
    assert (choice.best, choice.scores) == (1, (0.25, 0.5))


def test_scores_that_differ_by_rounding_are_equal() -> None:
    tasks = [
        _rows("1" + "0" * 9, "11" + "0" * 8),
        _rows("11" + "0" * 8, "1" + "0" * 9),
        _rows("1110000000", "1110000000"),
    ]
    assert choose({str(i): {"greedy": rows} for i, rows in enumerate(tasks)}, RESAMPLING).best == 0


def test_a_choice_that_no_draw_changes_adds_nothing() -> None:
    choice = choose({"sums": {"greedy": _rows("0" * 40, "1" * 40), "mean_at_4": _rows("0" * 40, "1" * 40)}}, RESAMPLING)
    assert (choice.best, choice.shares) == (1, (0, 1))
    assert _spread(choice, "greedy") == _spread(choice, "mean_at_4") == 0
    estimate = Estimate(value=0.5, low=0.4, high=0.7)
    assert with_choice(estimate, 0, 0.95) == estimate


def test_the_spread_is_that_of_the_scores_of_the_steps_that_the_draws_choose() -> None:
    greedy = _rows("1100110011", "1110000111")
    choice = choose({"sums": {"greedy": greedy, "pass_at_2": greedy / 2 + _rows("0" * 10, "1" * 10) / 2}}, RESAMPLING)
    first, second = choice.shares
    assert _spread(choice, "greedy") == pytest.approx(0)  # both have the same score
    assert _spread(choice, "pass_at_2") == pytest.approx(0.5 * (first * second) ** 0.5)


def test_over_seeds_a_draw_moves_the_mean_by_what_each_seed_chooses_in_it() -> None:
    one = {"draws": [0, 1, 1, 0], "means": {"sums": {"greedy": [0.2, 0.6]}}}
    other = {"draws": [1, 0, 0, 1], "means": {"sums": {"greedy": [0.2, 0.6]}}}
    assert spread_of([one], "sums", "greedy") == pytest.approx(0.2)
    assert spread_of([one, one], "sums", "greedy") == pytest.approx(0.2), "the same rows move both alike"
    assert spread_of([one, other], "sums", "greedy") == pytest.approx(0)
    assert spread_of([one], "without_rows", "greedy") == 0


def test_half_widths_are_added_by_squares_within_the_bounds() -> None:
    wide = with_choice(Estimate(value=0.5, low=0.47, high=0.53), 0.04 / 1.959964, 0.95)
    assert [wide.low, wide.high] == pytest.approx([0.45, 0.55])
    assert with_choice(Estimate(value=0.99, low=0.98, high=1), 0.1, 0.95).high == 1


def _sampled(rates: Floats, problems: int, generator: np.random.Generator) -> Floats:
    """Return answers [candidates, problems], right with about these rates: hard problems are hard for all candidates."""
    level = 1.75 * np.log(rates / (1 - rates))[:, None] + 2 * generator.normal(size=problems)
    return (generator.random(level.shape) < 1 / (1 + np.exp(-level))).astype(np.float64)


@pytest.mark.parametrize("rates", [[0.5] * 10, [0.3, 0.4, 0.48, 0.5, 0.52, 0.5, 0.47, 0.45]], ids=["equal", "peak"])
def test_the_interval_of_a_choice_covers_where_that_without_it_or_a_choice_on_the_test_rows_does_not(
    rates: list[float],
) -> None:
    generator = np.random.Generator(np.random.PCG64(7))
    truth = _sampled(np.array(rates), 200_000, generator).mean(axis=1)
    chosen, intervals, plain, naive = list[int](), list[Estimate](), list[Estimate](), list[tuple[float, Estimate]]()
    for _ in range(REPETITIONS):
        validation, test = (_sampled(np.array(rates), problems, generator) for problems in (50, 400))
        choice = choose({"sums": {"greedy": validation}}, RESAMPLING)
        chosen.append(choice.best)
        plain.append(wilson(int(test[choice.best].sum()), test.shape[1], 0.95))
        intervals.append(with_choice(plain[-1], _spread(choice, "greedy"), 0.95))
        best = int(test.mean(axis=1).argmax())
        naive.append((truth[best], wilson(int(test[best].sum()), test.shape[1], 0.95)))
    expected = truth[chosen].mean()  # what training and choosing give on average
    covered = np.mean([each.low <= expected <= each.high for each in intervals])
    alone = np.mean([each.low <= expected <= each.high for each in plain])
    on_test = np.mean([each.low <= own <= each.high for own, each in naive])
    assert covered >= 0.94
    assert min(alone, on_test) < 0.9


def test_a_policy_is_chosen_from_completions_and_a_sentence_says_how(tmp_path: Path) -> None:
    paths = []
    accuracies = {"trained": 0.3, "step_80": 0.9, "step_9": 0.2}
    for task in ("gsm8k", "math"):
        for policy, accuracy in accuracies.items():
            paths.append(tmp_path / "validation" / task / policy / "completions.parquet")
            write_parquet(paths[-1], sampled_completions(task, 20, 2, accuracy, np.random.default_rng(0)))
    written = chosen_by(paths, Scoring(bootstrap_draws=200))
    write_json(tmp_path / "choice.json", written)
    choice = read_choice(tmp_path / "choice.json")
    assert choice == read_json(tmp_path / "choice.json")
    assert choice["policy"] == "step_80"
    assert [each["policy"] for each in choice["candidates"]] == ["step_9", "step_80", "trained"]
    best = choice["candidates"][1]
    assert best["score"] == pytest.approx(np.mean([each["value"] for each in best["tasks"].values()]))
    assert set(choice["means"]["math"]) == {"greedy", "mean_at_2", "pass_at_1", "pass_at_2", "maj_at_2"}
    assert sentence(choice).startswith(
        "The policy after step 80 is the best of 3 by greedy accuracy on validation rows (20 of gsm8k, 20 of math)"
    )


ESTIMATE = {"problems": 64, "value": 0.5, "low": 0.4, "high": 0.6}
CANDIDATE = {"policy": "step_4", "score": 0.5, "share": 1, "tasks": {"sums": ESTIMATE}}
WRITTEN = {"policy": "step_4", "candidates": [CANDIDATE], "draws": [0], "means": {"sums": {"greedy": [0.5]}}}
EVIL = "<img src=x onerror=alert(1)> [click](http://x)"


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {**WRITTEN, "more": 1},
        {**WRITTEN, "policy": "step_2"},
        {**WRITTEN, "draws": [1]},
        {**WRITTEN, "draws": [-1]},
        {**WRITTEN, "draws": []},
        {**WRITTEN, "means": {"sums": {"greedy": [0.5, 0.5]}}},
        {**WRITTEN, "means": {"sums": {"greedy": [float("nan")]}}},
        {**WRITTEN, "means": {EVIL: {"greedy": [0.5]}}},
        {**WRITTEN, "means": {"other": {"greedy": [0.5]}}},
        {**WRITTEN, "means": {"sums": {}}},
        {**WRITTEN, "candidates": [CANDIDATE, CANDIDATE], "means": {"sums": {"greedy": [0.5, 0.5]}}},
        *(
            {**WRITTEN, "candidates": [{**CANDIDATE, key: value}]}
            for key, value in (
                ("tasks", {EVIL: ESTIMATE}),
                ("tasks", {}),
                ("policy", EVIL),
                ("policy", "base"),
                ("score", 9.0),
                ("share", "1"),
            )
        ),
    ],
)
def test_a_file_that_the_stage_does_not_write_is_refused(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    write_json(path, WRITTEN)
    assert read_choice(path) == WRITTEN
    path.write_text(json.dumps(content))
    with pytest.raises(UserError):
        read_choice(path)


def test_a_padded_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "choice.json"
    path.write_text(json.dumps(WRITTEN) + " " * 1000)
    monkeypatch.setattr(choice_module, "LARGEST", 1000)
    with pytest.raises(UserError, match=r"choice\.json has more than 1,000 bytes"):
        read_choice(path)


CHOOSES = {
    "training": {"keep_policies": [5], "steps": 10},
    "evaluation": {"choose": "best"},
    "data": {"held_out_validation": 8},
}


@pytest.mark.parametrize(
    ("section", "values", "remedy"),
    [
        ("training", {"steps": 10}, "keeps no policy before the last step: give it steps"),
        ("training", {"keep_policies": [10], "steps": 10}, "keeps no policy before the last step"),
        (
            "training",
            {"keep_policies": [5], "steps": 10, "patience": 2, "evaluate_every": 1},
            "training.patience may end",
        ),
        ("data", {}, r"no task of experiment\.evaluate \(arithmetic\) has validation rows: data\.held_out_validation"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_what_to_change(
    section: str, values: dict[str, Any], remedy: str
) -> None:
    assert parse(CHOOSES).evaluation.choose == "best"
    with pytest.raises(UserError, match=remedy):
        parse({**CHOOSES, section: values})


def test_a_task_with_validation_rows_of_its_own_needs_none_held_out_and_one_for_tests_only_has_none() -> None:
    assert [parse({}).data.has_validation(task) for task in ("math_500", "geo3k")] == [False, True]
    assert not parse({"data": {"held_out_validation": 8}}).data.has_validation("math_500")


@pytest.mark.parametrize(("best", "weights"), [("step_2", "other"), ("trained", "exported")])
def test_the_stage_writes_the_chosen_policy_with_its_weights_and_says_how(
    best: str, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("results/tiny/runs/seed_0")
    for name, seed in (("exported", 1), ("other", 2), ("sft", 3)):
        make_fresh(run / name, SHAPE.model_copy(update={"seed": seed}), torch.float32)
    convert(run / "sft", run / "initial", Checkpoint(format="dcp"))
    write(run / "kept", run / "initial", 2, open_tensors(run / "other"))
    paths = [run / f"validation/sums/{policy}/completions.parquet" for policy in ("step_2", "trained")]
    for path in paths:
        accuracy = 0.9 if path.parent.name == best else 0.1
        write_parquet(path, sampled_completions("sums", 20, 1, accuracy, np.random.default_rng(0)))
    inputs = {name: [run / name / "manifest.json"] for name in ("initial", "kept")}
    job = Job(
        stage="choose",
        experiment="tiny",
        overrides={},
        seed=0,
        inputs={**inputs, "trained": [run / "exported/manifest.json"], "completions": paths},
        outputs={"manifest": run / "chosen/manifest.json", "choice": run / "chosen/choice.json"},
        params={"evaluation": {"scoring": Scoring(bootstrap_draws=200).model_dump()}},
        runtime=Runtime(),
        threads=1,
        state=tmp_path / "state",
        log=tmp_path / "log",
    )
    choose_stage.work(job)
    assert verify(run / "chosen").tensors == verify(run / weights).tensors
    assert verify(run / "chosen").format == "huggingface"
    choice = read_choice(run / "chosen/choice.json")
    assert choice["policy"] == best
    other = "trained" if best == "step_2" else "step_2"
    write_json(run / "chosen/choice.json", {**choice, "policy": other})
    with pytest.raises(UserError, match=f"says that {other} was chosen, .* other weights: run the stage choose again"):
        read_choice(run / "chosen/choice.json")
