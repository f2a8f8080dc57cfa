"""What the report refuses: inputs that are missing, damaged, or not about the same thing."""

from pathlib import Path

import pytest
from tests.report.synthetic import Files, make_experiment

from dagrpo.report.rollouts import first_and_last


def test_seeds_tasks_and_policies_are_read_from_the_paths(tmp_path: Path) -> None:
    inputs = make_experiment(tmp_path, seeds=(10, 2), tasks=("b", "a")).read()
    assert inputs.seeds == (2, 10)
    assert inputs.tasks == ("b", "a")
    assert set(inputs.evaluations) == {(t, v, s) for t in "ab" for v in ("base", "trained") for s in (2, 10)}


def test_rollouts_that_are_not_those_of_the_manifest_are_named(experiment: Files) -> None:
    (experiment.rollouts[0].parent / "step_00012.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        ValueError, match=r"step_00012\.parquet is truncated .*, but .* lists it: run the stage train again"
    ):
        first_and_last(experiment.read(), 3)
