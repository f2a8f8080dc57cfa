"""Which files the rules hand to a stage."""

from tests.workflow.clones import ROOT

from dagrpo.params.presets import composed
from dagrpo.workflow.jobs import splits_with_pictures


def test_the_report_is_given_the_splits_of_tasks_with_pictures_and_no_others() -> None:
    shapes = composed(["shapes_tiny"], ROOT / "presets")
    assert splits_with_pictures(shapes, "one~try") == [
        "data/one~try/shapes/test.parquet",
        "results/one~try/difficulty/train.parquet",
    ]
    assert splits_with_pictures(composed(["arithmetic_tiny"], ROOT / "presets"), "arithmetic_tiny") == []
