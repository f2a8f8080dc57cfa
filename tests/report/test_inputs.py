"""What the report refuses: inputs that are missing, damaged, or not about the same thing."""

from pathlib import Path

import pytest
from tests.report.synthetic import Files, make_experiment

from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.scoring import score
from dagrpo.report.curves import curves
from dagrpo.report.rollouts import first_and_last
from dagrpo.utils.files import write_json
from dagrpo.utils.tables import read_parquet, write_parquet


def test_seeds_tasks_and_policies_are_read_from_the_paths(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, seeds=(10, 2), tasks=("b", "a")).read()
    assert inputs.seeds == (2, 10)
    assert inputs.tasks == ("b", "a")
    assert set(inputs.evaluations) == {(t, v, s) for t in "ab" for v in ("base", "trained") for s in (2, 10)}


def test_policies_scored_differently_are_not_compared(experiment: Files) -> None:
    scores, summary = experiment.scores[1], experiment.summaries[1]
    table, found = score(scores.parent / "completions.parquet", Scoring(extractor="flexible", bootstrap_draws=200))
    write_parquet(scores, table)
    write_json(summary, found)
    with pytest.raises(ValueError, match=r"differ in extractor: run the stage score again"):
        experiment.read()


def test_policies_on_different_problems_are_not_compared(experiment: Files) -> None:
    table = read_parquet(experiment.scores[1])
    write_parquet(experiment.scores[1], table.slice(0, table.num_rows - 5))
    with pytest.raises(ValueError, match=r"are of different problems: run the stage sample again"):
        experiment.read()


def test_rollouts_that_are_not_those_of_the_manifest_are_named(experiment: Files) -> None:
    (experiment.rollouts[0].parent / "step_00012.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ValueError, match=r"step_00012\.parquet is truncated .*, but .* lists it: run the stage train again"
    ):
        first_and_last(experiment.read(), 3)


def test_seeds_of_different_length_are_refused(tmp_path: Path) -> None:
    files = make_experiment(tmp_path, seeds=(0, 1))
    write_parquet(files.metrics[1], read_parquet(files.metrics[1]).slice(0, 5))
    with pytest.raises(ValueError, match=r"seed_1/metrics\.parquet has other steps or columns than that of seed 0"):
        curves(files.read())
