"""The scores of kept policies over steps: on the page, and for DVC."""

import csv
import shutil
from pathlib import Path

from tests.report.synthetic import Files, make_experiment, page_of
from tests.report.test_page import Checker

from dagrpo.evaluation.choice import with_choice
from dagrpo.report.comparison import compare, compare_chosen
from dagrpo.report.figures.policies import policy_scores
from dagrpo.report.page import render
from dagrpo.report.results import chosen_markdown, metrics_json, scores_csv
from dagrpo.utils.files import write_json

KEPT = {9: 0.8, 6: 0.7}


def test_each_policy_has_its_step_and_the_interval_that_the_comparison_gives(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, seeds=(0, 1), tasks=("arithmetic", "aime"), kept=KEPT, ended={1: 8}).read()
    scores = policy_scores(inputs)
    assert [(each.label, each.metric) for each in scores] == [
        (task, metric) for task in ("arithmetic", "aime") for metric in ("greedy", "mean_at_4")
    ]
    assert scores[0].policies == ("base", "step_6", "step_9", "trained")
    assert scores[0].steps == (0, 6, 9, 12)
    compared = compare(inputs, "aime")
    assert [scores[2].estimates[place] for place in (0, -1)] == [compared.greedy.first, compared.greedy.second]
    assert scores[2].by_seed.shape == (2, 4)
    assert scores[2].by_seed[:, 0].tolist() == [each.first.value for each in compared.greedy_by_seed]
    rows = list(csv.DictReader(scores_csv([compare(inputs, task) for task in inputs.tasks], scores).splitlines()))
    greedy = [row["policy"] for row in rows if (row["task"], row["metric"]) == ("aime", "Greedy accuracy")]
    assert greedy == ["base", "step_6", "step_9", "trained"]
    assert {row["policy"] for row in rows if row["metric"] == "pass@2"} == {"base", "trained"}


def test_the_page_shows_them_as_a_curve_and_a_table_where_there_are_any(experiment: Files, tmp_path: Path) -> None:
    assert "after each evaluated step" not in render(page_of(experiment))
    page = Checker(render(page_of(make_experiment(tmp_path / "kept", kept=KEPT))))
    page.require_whole()
    assert (
        "Figure 6. Score after each evaluated step. The base policy at step 0, what was kept after steps 6, 9,"
        in page.text
    )
    assert "step_9, after step 9: " in page.text
    assert "Table 3. Scores of kept policies" in page.text


def _choosing(root: Path, spreads: tuple[float, ...] = (0.125, 0.375)) -> Files:
    """The experiment, whose seeds chose step 6 and step 9; the report reads the one as the policy `chosen`."""
    files = make_experiment(root, seeds=(0, 1), kept=KEPT)
    for seed, step, spread in zip((0, 1), (6, 9), spreads, strict=True):
        folder = root / f"results/tiny/seed_{seed}"
        own = shutil.copytree(folder / f"eval/arithmetic/step_{step}", folder / "eval/arithmetic/chosen")
        files.scores.append(own / "scores.parquet")
        files.summaries.append(own / "scores.json")
        estimate = {"problems": 50, "value": 0.5, "low": 0.4, "high": 0.6}
        candidates = [
            {"policy": policy, "score": 0.5, "share": share, "tasks": {"arithmetic": estimate}}
            for policy, share in ((f"step_{step}", 0.75), ("trained", 0.25))
        ]
        files.choices.append(folder / "chosen/choice.json")
        means = {"arithmetic": {key: [0.5 - spread, 0.5 + spread] for key in ("greedy", "mean_at_4")}}
        choice = {"policy": f"step_{step}", "candidates": candidates, "draws": [0, 1], "means": means}
        write_json(files.choices[-1], choice)
    return files


def test_the_chosen_policy_has_its_scores_with_the_choice_in_their_intervals(tmp_path: Path) -> None:
    inputs = _choosing(tmp_path).read()
    assert "chosen" not in inputs.policies, "it is no point of the curve"
    plain, (chosen,) = compare(inputs, "arithmetic", "chosen"), compare_chosen(inputs)
    assert chosen.greedy.first == plain.greedy.first
    assert chosen.greedy.second == with_choice(plain.greedy.second, 0.25, 0.95)
    assert chosen.greedy.difference == with_choice(plain.greedy.difference, 0.25, 0.95, (-1, 1))
    assert chosen.greedy_by_seed[1].second == with_choice(plain.greedy_by_seed[1].second, 0.375, 0.95)
    assert chosen.metrics[2] == plain.metrics[2], "a metric without a spread stays as it is"
    trained = compare(inputs, "arithmetic")
    rows = list(csv.DictReader(scores_csv([trained], policy_scores(inputs), [chosen]).splitlines()))
    greedy = [row["policy"] for row in rows if row["metric"] == "Greedy accuracy"]
    assert greedy == ["base", "step_6", "step_9", "trained", "chosen"]


def test_page_summary_and_numbers_say_how_each_seed_chose_and_without_a_choice_nothing(
    experiment: Files, tmp_path: Path
) -> None:
    made = page_of(_choosing(tmp_path))
    page = Checker(render(made))
    page.require_whole()
    told = "The policy after step 9 is the best of 2 by greedy accuracy on validation rows (50 of arithmetic)"
    assert f"Seed 1: {told}" in page.text
    assert "moves the greedy accuracy by a standard deviation of 37.5 points on arithmetic" in page.text
    text = chosen_markdown(made.chosen, made.inputs.choices)
    assert "| task | metric | base | chosen | chosen - base |" in text
    assert f"- Seed 1: {told}" in text
    numbers = metrics_json(made.comparisons, made.curves, 3, made.chosen)
    assert numbers["arithmetic"]["chosen"] == round(made.chosen[0].greedy.second.value, 4)  # type: ignore[index]
    without = page_of(experiment)
    assert (without.chosen, chosen_markdown(without.chosen, {})) == ([], "")
    assert "chosen policy" not in render(without)
