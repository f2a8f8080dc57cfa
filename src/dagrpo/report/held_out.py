"""Held-out accuracy over training: points with intervals, by task and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagrpo.evaluation.held_out import points
from dagrpo.evaluation.outcomes import label_of
from dagrpo.evaluation.statistics import Estimate, wilson
from dagrpo.report.inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCurve:
    """The held-out accuracy of one task."""

    label: str
    split: str  # validation or test
    problems: int
    confidence: float
    seeds: Mapping[int, Mapping[int, Estimate]]  # by seed and step, both rising


def held_out_curves(inputs: Inputs) -> list[HeldOutCurve]:
    """Return the curve of each task, in the report's order; [] if training evaluated nothing."""
    return [curve for task in inputs.tasks if (curve := _curve(inputs, task)) is not None]


def _curve(inputs: Inputs, task: str) -> HeldOutCurve | None:
    found = {
        seed: own
        for seed, table in sorted(inputs.held_out.items())
        if (own := [point for point in points(table.to_pylist()) if point.task == task])
    }
    if not found:
        return None
    first, confidence = next(iter(found.values()))[0], inputs.resampling(task).confidence
    return HeldOutCurve(
        label=label_of(task, oracle=first.oracle),
        split=first.split,
        problems=first.problems,
        confidence=confidence,
        seeds={
            seed: {point.step: wilson(point.right, point.problems, confidence) for point in own}
            for seed, own in found.items()
        },
    )


def uses_the_test_split(curves: Sequence[HeldOutCurve]) -> bool:
    """Return True if some held-out problems are also those of the scores."""
    return any(curve.split == "test" for curve in curves)
