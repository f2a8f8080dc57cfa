"""Points of curves in MLflow, one per step."""

import math
from collections.abc import Iterable

from mlflow.entities import Metric

from dagrpo.tracking.runs import Run, Series
from dagrpo.utils.timings import GROUP


def log_points(run: Run, points: Iterable[Metric], *, are_final: bool = False, is_first: bool = True) -> None:
    """Log the points of steps that a run does not have yet; final ones also where it has another value for a step.

    A stage that resumes after an interruption reports its earlier steps again, and a follower may have logged some. An
    abandoned attempt may have had other values: MLflow keeps those beside the final ones. Times differ in each attempt,
    and are logged once. is_first: no attempt was abandoned before, so that a run with the last values has all of them.
    """
    points = list(points)
    if (is_first or not are_final) and _has_last_values(run, points):
        run.log(points=[point for point in points if point.key not in run.metrics])
    else:
        run.log(points=[point for point in points if not _has(run.history(point.key), point, are_final)])


def _has_last_values(run: Run, points: Iterable[Metric]) -> bool:
    """Return True if each metric that the run has ends with the last step and its value. Its points were logged in order."""
    last = {point.key: point for point in points if point.key in run.metrics}
    return all(run.steps[key] == point.step and _are_same(run.metrics[key], point.value) for key, point in last.items())


def _has(series: Series, point: Metric, is_final: bool) -> bool:
    values = series.get(point.step, [])
    if not is_final or point.key.startswith(GROUP):
        return bool(values)
    return any(_are_same(value, point.value) for value in values)


def _are_same(one: float, other: float) -> bool:
    return math.isclose(one, other) or (math.isnan(one) and math.isnan(other))
