"""The columns with which MLflow opens an experiment."""

import json

from dagrpo.tracking.views import VIEW_TAG, experiment_tags

FIGURES = (
    "eval/gsm8k/greedy_base",
    "eval/gsm8k/greedy_difference",
    "eval/gsm8k/greedy_trained",
    "timing/tokens_per_second_mean",
)


def test_differences_stand_first_then_what_tells_runs_apart_as_wide_as_their_headings() -> None:
    state = json.loads(experiment_tags(FIGURES, {"rollout.temperature", "training.steps"})[VIEW_TAG])
    assert state["selectedColumns"][:9] == [
        "metrics.`eval/gsm8k/greedy_difference`",
        "params.`rollout.temperature`",
        "params.`training.steps`",
        "params.`training.learning_rate`",
        "params.`algorithm.loss.name`",
        "params.`model.name`",
        "metrics.`eval/gsm8k/greedy_base`",
        "metrics.`eval/gsm8k/greedy_trained`",
        "metrics.`timing/tokens_per_second_mean`",
    ]
    assert state["columnOrder"] == state["selectedColumns"] == list(state["columnWidths"])
    assert state["columnWidths"]["metrics.`eval/gsm8k/greedy_base`"] == 30 + 6 * len("eval/gsm8k/greedy_base")
    assert state["columnWidths"]["params.`training.steps`"] == 30 + 6 * len("training.steps")


def test_the_first_charts_are_curves_of_training() -> None:
    state = json.loads(experiment_tags(FIGURES)[VIEW_TAG])
    charts = state["compareRunCharts"]
    assert [chart["metricKey"] for chart in charts[:2]] == ["held_out/gsm8k/greedy", "reward/mean"]
    assert {chart["type"] for chart in charts} == {"LINE"}
    assert {chart["metricSectionId"] for chart in charts} == {
        section["uuid"] for section in state["compareRunSections"]
    }
