"""Which columns the list of an experiment's runs opens with: MLflow shows no score unless it is told to."""

import json
from collections.abc import Iterable
from typing import Any

VIEW = "overview"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # of an experiment; the address names the view
KIND_TAG = "mlflow.experimentKind"  # which of its two faces MLflow shows
KIND = "custom_model_development"
PARAMETERS = ("model.name", "algorithm.loss.name", "training.steps", "training.learning_rate")


def experiment_tags(figures: Iterable[str]) -> dict[str, str]:
    """The tags that make MLflow open an experiment with these figures of its runs, beside what differs most often."""
    columns = [
        "attributes.`Models`",
        *(f"metrics.`{name}`" for name in figures),
        *(f"params.`{name}`" for name in PARAMETERS),
        "tags.`git.commit`",
    ]
    return {KIND_TAG: KIND, VIEW_TAG: json.dumps(_state(columns))}


def _state(columns: list[str]) -> dict[str, Any]:
    """As MLflow keeps a view that somebody has shared."""
    return {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runListHidden": False,
        "viewMaximized": True,
    }
