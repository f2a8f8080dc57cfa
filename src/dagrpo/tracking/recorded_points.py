"""The points that a stage has logged: curves of training to the run of the seed, everything else to the stage's own."""

import math
from collections.abc import Iterable, Sequence

from mlflow.entities import Metric

from dagrpo.tracking.events import Event
from dagrpo.tracking.names import metric_name
from dagrpo.tracking.pages import log_points
from dagrpo.tracking.parents import ATTEMPT, CURVES, PARENT, WITH_CURVES
from dagrpo.tracking.recorded import Recorded

OF_THE_MACHINE = "system/"


def bring_points(run: Recorded, events: Iterable[Event]) -> None:
    """All points at once: MLflow takes a thousand in one call. Brought twice, they are there once."""
    points = [point for event in events if event["event"] == "metrics" for point in _points(event)]
    curves = [] if run.stage not in WITH_CURVES else [each for each in points if not _is_of_the_machine(each)]
    own = [each for each in points if run.stage not in WITH_CURVES or _is_of_the_machine(each)]
    log_points(run.client, run.run_id, own)
    if curves:
        _bring_curves(run, curves)


def _bring_curves(run: Recorded, points: Sequence[Metric]) -> None:
    """One whole curve, however often training was killed and resumed."""
    tags = run.tags
    parent = tags[PARENT]
    if tags.get(ATTEMPT, "1") != "1":  # a stage that goes on tells its earlier steps again
        held = {key: _steps_of(run, parent, key) for key in {point.key for point in points}}
        points = [point for point in points if point.step not in held[point.key]]
    log_points(run.client, parent, list(points))
    if run.stage == "train":
        run.client.set_tag(parent, CURVES, run.stage)


def _steps_of(run: Recorded, parent: str, key: str) -> set[int]:
    return {point.step for point in run.client.get_metric_history(parent, key)}


def _is_of_the_machine(point: Metric) -> bool:
    return bool(point.key.startswith(OF_THE_MACHINE))


def _points(event: Event) -> list[Metric]:
    return [
        Metric(metric_name(name), math.nan if value is None else value, event["time"], event["step"])
        for name, value in event["values"].items()
    ]
