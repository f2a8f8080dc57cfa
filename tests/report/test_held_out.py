"""The held-out curve on the page."""

from pathlib import Path

import pytest
from tests.report.synthetic import Files, add_held_out, make_experiment, page_of
from tests.report.test_page import Checker

from dagrpo.evaluation.statistics import wilson
from dagrpo.report.curves import curves, moving_average, to_csv
from dagrpo.report.figures.held_out import held_out_curves
from dagrpo.report.figures.training import learning_curve
from dagrpo.report.page import render
from dagrpo.report.rollouts import first_and_last
from dagrpo.report.style import house_style


def test_each_task_has_a_curve_for_each_seed_with_wilsons_interval(tmp_path: Path) -> None:
    files = add_held_out(make_experiment(tmp_path, seeds=(0, 1), tasks=("arithmetic", "aime"), steps=8))
    sums, aime = held_out_curves(files.read())
    assert (sums.label, aime.label, sums.problems, sums.split) == ("arithmetic", "aime", 64, "test")
    assert sums.seeds[0] == {step: wilson(right, 64, 0.95) for step, right in ((0, 16), (4, 24), (8, 32))}
    assert sums.seeds[1][8] == wilson(29, 64, 0.95)


def test_the_page_shows_it_and_says_that_its_problems_are_the_tests(experiment: Files) -> None:
    page = Checker(render(page_of(add_held_out(experiment))))
    page.require_whole()
    assert "Figure 6. Held-out problems during training." in page.text
    assert "that choice is fitted to the test, and its score is too optimistic" in page.text
    assert "after step 4: 37.5% (26.7 to 49.7)" in page.text


def test_a_seed_that_its_patience_ended_keeps_its_last_average(tmp_path: Path) -> None:
    files = make_experiment(tmp_path, seeds=(0, 1), ended={1: 8})
    recorded = curves(files.read())
    with house_style():
        figure = learning_curve(recorded, 3)
    assert "training.patience ended seed 1 after step 8; lines go on with its last average." in figure.description
    assert to_csv(recorded).count("\n1,") == 8
    smooth = moving_average(recorded["reward/mean"], 3)
    assert smooth[1, -1] == pytest.approx(recorded["reward/mean"][1, 5:8].mean())
    phases = first_and_last(files.read(), 10)
    assert phases is not None
    first, last = phases
    assert (first.steps, last.steps, len(last.rewards)) == ((1, 4), (9, 12), 2 * 4 * 4 * 8)
