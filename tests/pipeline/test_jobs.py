"""Which files the rules hand to a stage."""

from tests.workflow.clones import ROOT

from dagrpo.params.presets import composed
from dagrpo.workflow.jobs import splits_of_report


def test_the_report_is_given_the_splits_of_all_evaluated_tasks_and_what_training_drew_from() -> None:
    shapes = composed(["shapes_tiny"], ROOT / "presets")
    assert splits_of_report(shapes, "one~try") == [
        "data/one~try/shapes/test.parquet",
        "results/one~try/difficulty/train.parquet",
    ]
