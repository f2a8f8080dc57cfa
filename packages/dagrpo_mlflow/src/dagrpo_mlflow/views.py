"""Columns of MLflow's list of runs, and the first of its charts.

By default MLflow shows no score, and each column has 100 pixels, so that the headings of all scores of a task are cut to the same
text; its first charts are those of the alphabet, a bar for each score. Only a shared view changes that, and MLflow says above the
list that it is one.
"""

import json
from collections.abc import Iterable
from typing import Any

VIEW = "overview"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # of an experiment; the address names the view
KIND_TAG = "mlflow.experimentKind"  # which of its two faces MLflow shows
KIND = "custom_model_development"
MODELS = "attributes.`Models`"
PIXELS_PER_CHARACTER, PIXELS_BESIDE = 6, 30  # of a heading, and of the sign for sorting
PIXELS_OF_MODELS = 200
POLICIES = ("base", "trained", "chosen", "difference")  # the order in which they are read
CURVES = ("reward/mean", "rollout/length_mean", "policy/entropy", "policy/kl", "policy/grad_norm")
PARAMETERS = ("training.steps", "training.learning_rate", "algorithm.loss.name", "model.name")


def experiment_tags(figures: Iterable[str], varied: Iterable[str] = ()) -> dict[str, str]:
    """Return the tags that make MLflow open an experiment with the columns of its runs: what GRPO changed, what tells runs apart, scores.

    varied: the keys of the parameters that override runs have changed.
    """
    figures = sorted(figures, key=_place)
    differences = [name for name in figures if name.endswith("_difference")]
    columns = [
        *(f"metrics.`{name}`" for name in differences),
        *(f"params.`{name}`" for name in dict.fromkeys([*sorted(varied), *PARAMETERS])),
        *(f"metrics.`{name}`" for name in figures if name not in differences),
        MODELS,
        "tags.`git.commit`",
    ]
    greedy = [name.removeprefix("eval").removesuffix("_base") for name in figures if name.endswith("/greedy_base")]
    curves = [*(f"held_out{name}" for name in greedy), *CURVES]
    return {KIND_TAG: KIND, VIEW_TAG: json.dumps(_state(columns) | _charts(curves))}


def _place(figure: str) -> tuple[str, int]:
    """Return the sort key of figures: those of one score stand together, base before trained."""
    score, _, policy = figure.rpartition("_")
    return score, POLICIES.index(policy) if policy in POLICIES else len(POLICIES)


def _state(columns: list[str]) -> dict[str, Any]:
    """Return a shared view's state as MLflow stores it."""
    headings = {column: column.partition("`")[2].rstrip("`") for column in columns}  # metrics.`eval/gsm8k/greedy_base`
    widths = {column: PIXELS_BESIDE + PIXELS_PER_CHARACTER * len(heading) for column, heading in headings.items()}
    return {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": widths | {MODELS: PIXELS_OF_MODELS},
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runListHidden": False,
        "viewMaximized": True,
    }


def _charts(curves: list[str]) -> dict[str, Any]:
    """Return the part of a shared view's state that has a section of curves before all others, which MLflow adds by itself."""
    section = {"uuid": "training", "name": "Training", "display": True, "isReordered": True}
    line = {"type": "LINE", "metricSectionId": section["uuid"], "runsCountToCompare": 10, "isGenerated": True}
    return {
        "compareRunSections": [section],
        "compareRunCharts": [line | {"uuid": name, "metricKey": name, "selectedMetricKeys": [name]} for name in curves],
        "isAccordionReordered": True,
    }
