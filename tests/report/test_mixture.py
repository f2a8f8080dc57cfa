"""The tasks of a mixture, one by one: in the report, its curves and the summary of the stage train."""

import csv
from pathlib import Path

import pytest
from tests.report.synthetic import Files, add_mixture, make_experiment, page_of

from dagrpo.pipeline.stages.train import rows_to_show
from dagrpo.report.curves import curves, to_csv
from dagrpo.report.figures.training import by_task
from dagrpo.report.page import render
from dagrpo.report.style import house_style
from dagrpo.utils.tables import read_parquet, write_parquet


@pytest.mark.parametrize("seeds", [(0,), (0, 3)])
def test_the_page_draws_each_task_and_says_where_it_ended(seeds: tuple[int, ...], tmp_path: Path) -> None:
    page = page_of(add_mixture(make_experiment(tmp_path, seeds=seeds)))
    (figure,) = page.training_figures
    assert figure.description == (
        "gsm8k in the last step: reward 0.6, tokens 100, prompts 4, epochs 0.5; "
        "math in the last step: reward 0.7, tokens 200, prompts 2, epochs 0.5."
    )
    assert len(figure.figure.axes) == 4
    assert any(hover.text == "step 12: gsm8k 0.5545, math 0.6545" for hover in figure.hovers), "means of three steps"
    assert ("seeds" in figure.caption) == (len(seeds) > 1)
    text = render(page)
    assert "The tasks of the mixture" in text
    assert "Mean reward of a task" in text  # in the glossary


def test_a_single_task_has_no_figure_of_tasks(experiment: Files) -> None:
    assert not page_of(experiment).training_figures


def test_figures_that_a_trainer_does_not_measure_are_left_out(tmp_path: Path) -> None:
    files = add_mixture(make_experiment(tmp_path), tasks=("gsm8k", "my_lab.capitals.TASK"))
    (path,) = files.metrics
    table = read_parquet(path)
    without = [name for name in table.column_names if name.endswith("/entropy") and name.startswith("task/")]
    write_parquet(path, table.drop_columns([*without, "task/gsm8k/tokens_mean"]))
    found = curves(files.read())
    with house_style():
        figure = by_task(found, 3)
    assert figure is not None
    reward, length, equal, _ = figure.figure.axes
    assert (len(reward.lines), len(length.lines), len(equal.lines)) == (2, 1, 2)
    assert list(csv.DictReader(to_csv(found).splitlines()))[-1]["task/my_lab.capitals.TASK/groups"] == "2.0"


def test_the_summary_of_the_stage_has_a_line_for_each_task() -> None:
    steps = [
        {"reward/mean": 0.5, "task/sums/reward_mean": 0.25, "task/sums/tokens_mean": 10.0, "task/sums/epoch": 0.1},
        {"reward/mean": 0.5, "task/sums/reward_mean": 0.75, "task/sums/tokens_mean": 20.0, "task/sums/epoch": 0.2}
        | {"task/larger/reward_mean": 1.0, "task/larger/no_signal_fraction": 0.125, "task/larger/epoch": 0.3},
    ]
    rows = dict(rows_to_show(steps))
    assert rows["  sums"] == "0.500, 15 tokens, epoch 0.20"
    assert rows["  larger"] == "1.000, 12% of prompts without signal, epoch 0.30"
    assert not [label for label in dict(rows_to_show([{"reward/mean": 0.5}])) if label.startswith("  ")]
