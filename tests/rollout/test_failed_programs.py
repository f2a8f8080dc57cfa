"""A stage whose attempts' program fails says so once, with the most frequent fault and the program's log."""

from pathlib import Path

import pytest
from tests.rollout.problems import problem

from dagrpo.core.trajectory import Trajectory
from dagrpo.rollout.collect import FailedPrograms


def _attempt(fault: str = "") -> Trajectory:
    return Trajectory(
        prompt=problem(),
        sample_index=0,
        sampling_seed=1,
        samples=(),
        text="",
        finish_reason="stop",
        stop_reason="program_failed" if fault else "answered",
        fault=fault,
    )


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_it_is_said_once_with_the_most_frequent_fault_and_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/program.log").touch()
    watched = FailedPrograms(tmp_path / "agent")
    watched.warn("train (seed 1), step 1", [_attempt()] * 3)
    assert _lines(capsys) == []
    attempts = [_attempt("rare"), *[_attempt("RuntimeError: dead at\x1b[2J problem 672")] * 2, _attempt()]
    watched.warn("train (seed 1), step 2", attempts)
    assert _lines(capsys) == [
        "train (seed 1), step 2: 3 of 4 attempts ended with program_failed, such as: RuntimeError: dead at\\u001b[2J "
        "problem 672 (agent/program.log)"
    ]
    watched.warn("train (seed 1), step 3", attempts)
    assert _lines(capsys) == []


def test_a_log_that_was_never_written_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FailedPrograms(tmp_path).warn("sample arithmetic", [_attempt("The program was not done after 1 seconds.")])
    assert _lines(capsys) == [
        "sample arithmetic: 1 of 1 attempts ended with program_failed, such as: The program was not done after 1 seconds."
    ]
