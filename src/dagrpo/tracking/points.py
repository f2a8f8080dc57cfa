"""Points of curves in MLflow, one per step."""

from collections.abc import Iterable

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

METRICS_PER_BATCH = 1000  # MLflow's limit


def log_points(client: MlflowClient, run_id: str, points: Iterable[Metric]) -> None:
    """Log the points of steps that a run does not have yet.

    A stage that resumes after an interruption reports its earlier steps again, and a follower may have logged some.
    """
    points = list(points)
    held = _steps_held(client, run_id, {point.key for point in points})
    log_all(client, run_id, [point for point in points if point.step not in held[point.key]])


def log_all(client: MlflowClient, run_id: str, points: list[Metric]) -> None:
    """Log points; MLflow ignores one that it has with the same step, time and value."""
    for start in range(0, len(points), METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=points[start : start + METRICS_PER_BATCH])


def _steps_held(client: MlflowClient, run_id: str, keys: set[str]) -> dict[str, set[int]]:
    known = client.get_run(run_id).data.metrics if keys else {}
    return {
        key: {point.step for point in client.get_metric_history(run_id, key)} if key in known else set() for key in keys
    }
