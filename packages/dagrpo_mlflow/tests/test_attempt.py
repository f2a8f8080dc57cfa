"""The note of an execution says how it ended, and stays only where that was not well."""

import logging
import signal
import subprocess
import time
from pathlib import Path

import pytest
from packages.dagrpo_mlflow.tests.conftest import StartStage, stage_record

from dagrpo.core.errors import Terminated, UserError
from dagrpo.pipeline.curve import Curve
from dagrpo.utils.files import read_object
from dagrpo_mlflow import attempt
from dagrpo_mlflow.attempt import FOLDER, leave_database_to_the_head, noted, works_in_a_job
from dagrpo_mlflow.curve import read_curve
from dagrpo_mlflow.execution import unfinished

LOG = Path("stage.log")


def test_a_stage_that_ends_well_leaves_no_note_nor_one_that_is_not_recorded(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with noted(stage_record(), {}, {}, LOG):
        (note,) = FOLDER.iterdir()
        assert read_object(note)["status"] == "RUNNING"
    assert list(FOLDER.iterdir()) == []
    FOLDER.rmdir()
    FOLDER.write_text("no folder")
    with caplog.at_level(logging.WARNING), noted(stage_record(), {}, {}, LOG):
        Curve(Path("absent/stage.log")).add(1, {"loss": 2.0})
    assert "a failure of this execution will not be in MLflow: " in caplog.text
    assert caplog.text.count("the curves of this run end at step 1") == 1
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    with noted(stage_record(), {}, {}, LOG):
        assert FOLDER.is_file()


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UserError("row 3: no answer."), "FAILED", "row 3: no answer."),
        (KeyError("bug"), "FAILED", "KeyError: 'bug'"),
        (Terminated(143), "KILLED", ""),
        (KeyboardInterrupt(), "KILLED", ""),
    ],
)
def test_a_note_tells_a_mistake_from_a_stop(fresh: Path, error: BaseException, status: str, words: str) -> None:
    with pytest.raises(type(error)), noted(stage_record(), {}, {}, LOG):
        raise error
    (execution,) = unfinished()
    assert (execution.status, execution.error) == (status, words)
    assert execution.ended is not None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stage_ended_by_a_signal_is_killed(
    fresh: Path, start_stage: StartStage, number: signal.Signals, code: int
) -> None:
    process = start_stage(stage_record(), "time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    assert [execution.status for execution in unfinished()] == ["RUNNING"]
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code
    assert [execution.status for execution in unfinished()] == ["KILLED"]


@pytest.mark.parametrize(
    ("address", "mode"), [("", "later"), ("sqlite:///runs.db", "later"), ("http://127.0.0.1:9", "on")]
)
def test_a_job_of_a_cluster_leaves_an_embedded_database_to_the_head(
    address: str, mode: str, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    leave_database_to_the_head()
    assert attempt.mode() == mode


def test_the_head_follows_a_stage_of_its_experiment_that_works_in_a_job(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = stage_record()
    with noted(record, {}, {}, LOG):
        (note,) = FOLDER.iterdir()
        assert not works_in_a_job(note, {"another", record["experiment"]})
    monkeypatch.setenv("SLURM_JOB_ID", "14")
    with noted(record, {}, {}, LOG):
        (note,) = FOLDER.iterdir()
        assert works_in_a_job(note, {"another", record["experiment"]})
        assert not works_in_a_job(note, {"another"})
    assert not works_in_a_job(note, {"another", record["experiment"]})


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("DAGRPO_TRACKING", "yes", "DAGRPO_TRACKING=yes is not known: set it to one of on, off, later"),
        ("MLFLOW_TRACKING_URI", "./mlruns", "names a folder"),
    ],
)
def test_settings_under_which_nothing_can_be_recorded_end_the_stage_before_it_works(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=words), noted(stage_record(), {}, {}, LOG):
        pytest.fail("the stage must not work")


@pytest.mark.parametrize(("mode", "started"), [("on", 1), ("later", 0)])
def test_only_a_long_stage_is_followed_and_only_where_runs_are_recorded_at_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, mode: str, started: int
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", mode)
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: commands.append(command))
    with noted(stage_record(), {}, {}, LOG):
        pass
    assert commands == []
    monkeypatch.setattr(attempt, "SECONDS_BEFORE_FOLLOWING", 0.01)
    with noted(stage_record(), {}, {}, LOG):
        time.sleep(0.2)
    assert [command[1:3] for command in commands] == [("-m", "dagrpo_mlflow.follow")] * started


def test_a_curve_is_read_on_from_where_it_was_read_last(fresh: Path) -> None:
    curve = Curve(LOG)
    curve.add(1, {"loss": 2.0})
    first, offset = read_curve(LOG)
    curve.add(2, {"loss": float("nan")})
    with LOG.with_suffix(".curve.jsonl").open("a") as file:
        file.write('{"step": 3, "ti')  # a line that is being written
    second, _ = read_curve(LOG, offset=offset)
    assert [step.step for step in (*first, *second)] == [1, 2]
    assert read_curve(LOG, since=first[0].time + 3_600_000)[0] == []
    again = Curve(LOG)
    assert len(read_curve(LOG)[0]) == 2, "until a new execution has its first step"
    again.add(1, {"loss": 1.0})
    assert [step.values for step in read_curve(LOG)[0]] == [{"loss": 1.0}]
