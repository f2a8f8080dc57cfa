"""The frame of a stage: one sentence for a mistake, a traceback for a bug, the log has both, nothing half written."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pipeline.running import empty_project, options_of

from dagrpo.core.errors import TransientError, UserError
from dagrpo.pipeline import runner
from dagrpo.pipeline.declaration import Job, Stage
from dagrpo.utils.failures import MISTAKE, TRANSIENT
from dagrpo.utils.files import read_json, sha256_of, write_json

__all__ = ["empty_project"]


@pytest.fixture(autouse=True)
def _in_an_empty_project(empty_project: None) -> None:
    Path("in.txt").write_text("raw")


def _copy(job: Job) -> None:
    job.output("result").parent.mkdir(exist_ok=True)
    job.output("result").write_text(job.input("source").read_text())


def _run(work: Callable[[Job], None] = _copy, *more: str, steps: int = 7, **runtime: Any) -> dict[str, Any]:
    """Run a stage that reads section sft; what its provenance says."""
    stage = Stage(name="sft", work=work, reads=("sft",), extends=("sft.steps",))
    params, outputs = (
        {"sft": {"steps": steps, "batch_size": 4}},
        ["result=out/result.txt", "provenance=out/provenance.json"],
    )
    runner.run(stage, options_of("sft", params, ["source=in.txt"], outputs, "--seed=3", *more, runtime=runtime))
    record: dict[str, Any] = read_json(Path("out/provenance.json"))
    return record


@pytest.mark.parametrize("change", [lambda path: path.write_text("more"), Path.unlink], ids=["written to", "removed"])
def test_a_raw_file_that_changes_while_it_is_read_is_named_and_nothing_is_recorded(
    change: Callable[[Path], Any],
) -> None:
    def work(job: Job) -> None:
        _copy(job)
        change(job.input("source"))

    with pytest.raises(SystemExit) as ended:
        _run(work)
    assert ended.value.code == MISTAKE
    assert "in.txt changed while the stage sft read it: run again when" in Path("logs/sft.log").read_text()
    assert not Path("out/provenance.json").exists()


def test_provenance_names_all_in_and_out_and_the_key_changes_with_input_seed_and_parameters_alone() -> None:
    record = _run()
    first = record["key"]
    assert record["inputs"] == {"in.txt": sha256_of(Path("in.txt"))}
    assert record["outputs"] == {"out/result.txt": sha256_of(Path("out/result.txt"))}
    assert (record["stage"], record["seed"], record["params"]["sft"]["steps"]) == ("sft", 3, 7)
    faster = _run(training={"micro_batch_size": 2}, engine={"request_timeout": 9})
    assert (faster["key"], faster["runtime"]["training"]["micro_batch_size"]) == (first, 2)
    assert _run(_copy, "--log", "logs/other.log")["key"] == first
    assert _run(_copy, "--seed", "4")["key"] != first
    assert _run(steps=8)["key"] != first
    Path("in.txt").write_text("other")
    assert _run()["key"] != first


def test_more_steps_and_another_runtime_go_on_from_the_same_state_and_another_batch_size_does_not() -> None:
    states: list[Path] = []

    def work(job: Job) -> None:
        states.append(job.state)
        _copy(job)

    _run(work)
    _run(work, steps=8)
    _run(work, training={"save_every": 1})
    assert len(set(states)) == 1
    write_json(Path("in.txt"), "other data")
    _run(work)
    assert len(set(states)) == 2


FULL_DISK = OSError(errno.ENOSPC, "No space left on device", "models/m")
FULL_SOMEWHERE = OSError(errno.ENOSPC, "No space left on device")
FORBIDDEN = PermissionError(errno.EACCES, "Permission denied", "data/x")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UserError("train.parquet row 3: no answer."), MISTAKE, "train.parquet row 3: no answer."),
        (FULL_DISK, MISTAKE, "models/m: No space left on device: it takes more than the "),
        (FULL_SOMEWHERE, MISTAKE, "a disk: No space left on device: make room, then run again."),
        (FORBIDDEN, MISTAKE, "data/x: Permission denied: correct its permissions, then run again."),
        (torch.OutOfMemoryError("CUDA out of memory"), MISTAKE, "lower runtime.training.micro_batch_size"),
        (TransientError("the server died."), TRANSIENT, "the server died."),
    ],
)
def test_what_the_user_can_mend_is_one_sentence_on_the_screen_and_a_traceback_in_the_log(
    error: Exception, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(job: Job) -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        _run(work)
    assert caught.value.code == code
    shown = capsys.readouterr().err
    assert sentence in shown
    assert "Traceback" not in shown
    log = Path("logs/sft.log").read_text()
    assert "Traceback" in log
    assert sentence in log
    assert not Path("out/provenance.json").exists()


@pytest.mark.parametrize(
    "error",
    [KeyError("bug"), ValueError("torch complains"), ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")],
    ids=lambda error: type(error).__name__,
)
def test_a_bug_is_raised_as_it_is(error: Exception) -> None:
    def work(job: Job) -> None:
        raise error

    with pytest.raises(type(error)):
        _run(work)
    (failure,) = Path(".state/failures").glob("*.json")
    assert read_json(failure)["sentence"].startswith("a bug in ")
    assert "test_runner.py:" in read_json(failure)["sentence"]


SECRET = "m4rked-s3cret"


def _failing(error: type[Exception]) -> Callable[[Job], None]:
    def work(job: Job) -> None:
        logging.getLogger("library").warning("asked with %s", os.environ["HF_TOKEN"])
        raise error(f"no answer from http://alice:pa55word@lab with {os.environ['HF_TOKEN']}")

    return work


@pytest.mark.parametrize("error", [UserError, TransientError, RuntimeError])
def test_no_secret_of_an_error_is_shown_logged_or_recorded(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("DAGRPO_TRACKING", "later")
    with pytest.raises(RuntimeError if error is RuntimeError else SystemExit):
        _run(_failing(error))
    (failure,) = Path(".state/failures").iterdir()
    assert "http://alice:***@lab with ***" in failure.read_text()
    assert "http://alice:***@lab with ***" in Path("logs/sft.log").read_text()
    assert error is RuntimeError or "http://alice:***@lab with ***" in capsys.readouterr().err
    backups = b"".join(path.read_bytes() for path in Path().rglob("*") if path.is_file())
    assert b"asked with ***" in backups
    (note,) = Path(".state/executions").iterdir()
    assert "http://alice:***@lab with ***" in note.read_text(), "what MLflow will show"
    assert SECRET.encode() not in backups
    assert b"pa55word" not in backups


def test_a_missing_input_is_named_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _run(_copy, "--input", "source=gone.parquet")
    assert "gone.parquet is missing: run the stage that makes it first." in capsys.readouterr().err


@pytest.mark.parametrize("has_run", [True, False])
def test_an_output_that_the_stage_does_not_write_is_refused_and_not_recorded(
    has_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_run:
        _run()
    before = Path("out/provenance.json").read_bytes() if has_run else None
    with pytest.raises(SystemExit) as caught:
        _run(lambda job: None)
    assert caught.value.code == MISTAKE
    assert (
        "the stage sft has not written its output result (out/result.txt): write it in `work`"
        in capsys.readouterr().err
    )
    assert (Path("out/provenance.json").read_bytes() if has_run else None) == before


def test_a_second_attempt_leaves_the_log_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    def work(job: Job) -> None:
        raise UserError(f"attempt in {job.log}")

    for attempt in ("1", "2"):
        with pytest.raises(SystemExit):
            _run(work, "--attempt", attempt)
    assert Path("logs/sft.log").read_text().count("Traceback") == 2
