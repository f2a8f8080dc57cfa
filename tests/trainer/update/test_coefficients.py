"""Coefficients that adapt are part of a run's state: a run that was interrupted goes on with them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer import runs

from dagrpo.algorithms.config import Algorithm
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.tables import read_parquet

START, DELTA = 0.01, 0.02
NAME = "policy/adaptive_entropy_coefficient"


def _run(inputs: tuple[Path, Path], out: Path, *, target: float) -> TrainingRun:
    term = {"coefficient": START, "delta": DELTA, "target": target}
    algorithm = Algorithm.model_validate({"terms": {"adaptive_entropy": term}})
    return replace(runs.training_run(inputs, out / "state", out, steps=4), algorithm=algorithm)


def _coefficients(run: TrainingRun) -> Sequence[float]:
    values: list[float] = read_parquet(run.metrics)[NAME].to_pylist()
    return values


@pytest.mark.nightly
def test_a_resumed_run_has_the_coefficients_and_the_bytes_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    """The entropy of a random policy is always below the target: the coefficient rises after every step."""
    inputs = runs.make_inputs(tmp_path)
    whole = _run(inputs, tmp_path / "whole", target=90.0)
    runs.execute(whole)
    assert _coefficients(whole) == pytest.approx([START + DELTA * step for step in range(4)])
    cut = _run(inputs, tmp_path / "cut", target=90.0)
    runs.execute(cut, stop=lambda step: step == 3)  # the state is that of step 2
    runs.execute(cut)
    assert _coefficients(cut) == _coefficients(whole)
    assert runs.bytes_of(cut) == runs.bytes_of(whole)
