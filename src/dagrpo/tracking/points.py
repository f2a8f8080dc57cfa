"""Points of curves in MLflow, one per step."""

import math
from collections.abc import Iterable

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from dagrpo.utils.timings import GROUP

METRICS_PER_BATCH = 1000  # MLflow's limit


def log_points(client: MlflowClient, run_id: str, points: Iterable[Metric], *, are_final: bool = False) -> None:
    """Log the points of steps that a run does not have yet; final ones also where it has another value for a step.

    A stage that resumes after an interruption reports its earlier steps again, and a follower may have logged some. An
    abandoned attempt may have had other values: MLflow keeps those beside the final ones. Times differ in each attempt,
    and are logged once.
    """
    points = list(points)
    values = _recorded_values(client, run_id, {point.key for point in points})
    log_all(client, run_id, [point for point in points if not _has(values[point.key], point, are_final)])


def log_all(client: MlflowClient, run_id: str, points: list[Metric]) -> None:
    """Log points; MLflow ignores one that it has with the same step, time and value."""
    for start in range(0, len(points), METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=points[start : start + METRICS_PER_BATCH])


def _has(values_of_steps: dict[int, list[float]], point: Metric, is_final: bool) -> bool:
    values = values_of_steps.get(point.step, [])
    if not is_final or point.key.startswith(GROUP):
        return bool(values)
    return any(_are_same(value, point.value) for value in values)


def _are_same(one: float, other: float) -> bool:
    return math.isclose(one, other) or (math.isnan(one) and math.isnan(other))


def _recorded_values(client: MlflowClient, run_id: str, keys: set[str]) -> dict[str, dict[int, list[float]]]:
    """Return the values of each metric by step; more than one where attempts differ."""
    known = client.get_run(run_id).data.metrics if keys else {}
    values: dict[str, dict[int, list[float]]] = {key: {} for key in keys}
    for key in keys & known.keys():
        for point in client.get_metric_history(run_id, key):
            values[key].setdefault(point.step, []).append(point.value)
    return values
