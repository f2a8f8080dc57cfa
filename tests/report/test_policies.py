"""The scores of kept policies over steps: on the page, and for DVC."""

import csv
from pathlib import Path

from tests.report.synthetic import Files, make_experiment, page_of
from tests.report.test_page import Checker

from dagrpo.report.comparison import compare
from dagrpo.report.figures.policies import policy_scores
from dagrpo.report.page import render
from dagrpo.report.results import scores_csv

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
        "Figure 6. Score after each evaluated step. The base policy at step 0, the policies kept after the steps 6, 9,"
        in page.text
    )
    assert "step_9, after step 9: " in page.text
    assert "Table 3. Scores of the policies of chosen steps" in page.text
