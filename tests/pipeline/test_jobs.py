"""Which files the rules hand to a stage."""

from tests.pipeline.snakemake.clones import ROOT

from dagrpo.config.presets import composed
from dagrpo.pipeline.jobs import splits_of_report


def test_the_report_is_given_the_splits_of_all_evaluated_tasks_and_what_training_drew_from() -> None:
    shapes = composed(["shapes_tiny"], ROOT / "presets")
    assert splits_of_report(shapes, "one~try") == [
        "data/one~try/shapes/test.parquet",
        "results/one~try/difficulty/train.parquet",
    ]
