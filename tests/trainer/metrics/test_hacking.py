"""A run warns of a component that rises while accuracy falls: once, on the screen."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.trainer.computed import COMPUTED

from dagrpo.trainer.history import HackingWarnings
from dagrpo.trainer.state.digest_table import StepDigests
from dagrpo.trainer.state.records import Record

STEPS = 80


def _record(folder: Path, form: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Record:
    record, rows = Record(folder), pa.table({"problem_index": [1]})
    accuracy = np.interp(np.arange(STEPS), [0, 30, 79], [0.3, 0.7, 0.2])
    noise = np.random.default_rng(0).normal(0, 0.01, (2, STEPS))
    for step in range(STEPS):
        metrics = {
            "reward/accuracy": float(accuracy[step] + noise[0, step]),
            "reward/component/format": float(form[step] + noise[1, step]),
        }
        record.add(step + 1, rows, metrics, {}, StepDigests(computed=COMPUTED, gradients=(), weights={}))
    return record


def _warned(record: Record, capsys: pytest.CaptureFixture[str]) -> list[str]:
    warnings = HackingWarnings("train (seed 7)")
    for step in range(1, STEPS + 1):
        warnings.warn(step, record)
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).split())
    return text.split("train (seed 7), ")[1:]


def test_an_exploited_component_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sentence,) = _warned(_record(tmp_path, np.linspace(0.1, 0.9, STEPS)), capsys)
    assert sentence.startswith("step 60: the component format rose from 0.")
    assert "the policy seems to exploit it" in sentence


def test_a_component_that_falls_too_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _warned(_record(tmp_path, np.linspace(0.9, 0.1, STEPS)), capsys) == []
