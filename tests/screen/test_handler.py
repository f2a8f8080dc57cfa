"""What is shown of a run: calm lines while it works, one panel when it failed, each thing once."""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.screen.events import END, NOW, error, failed, finished, plan, record, screen, started

from dagrpo.pipeline import failure_report
from dagrpo.pipeline.locks import DRIVER
from dagrpo.pipeline.snakemake.checks import Refusal
from dagrpo.utils.files import write_json
from dagrpo.utils.locks import Holder, Process
from snakemake_logger_plugin_dagrpo import failures, handler

COMMAND_LINE = (
    'RuleException:\nCalledProcessError in file "/p/workflow/rules/train.smk", line 33:\n'
    "Command 'set -euo pipefail;  python workflow/scripts/stage.py --job ...' returned non-zero exit status 1."
)
ARGUMENTS = ("--cores", "all", "target")


@pytest.fixture(autouse=True)
def _in_an_empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)


def _write_failure(stage: str, log: str, kind: str, sentence: str, *, time: float = NOW) -> None:
    path = failure_report.path_of(stage, Path(log))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": kind, "sentence": sentence, "log": log, "time": time}))


def test_a_run_that_ends_well_is_a_plan_and_the_start_and_end_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(
            record("Building DAG of jobs..."), plan(train=1, sample=2, target=1), record("Select jobs to execute...")
        )
        shown.tell(started(1, "train", "train: seed 0", "logs/train.log"), finished(1, at=NOW + 125))
        shown.tell(started(0, "target", "e is complete.", None), finished(0))
        shown.tell(record("Complete log(s): x"), record("Elapsed time: 0:02:05"))
    assert text.getvalue().splitlines() == [
        "3 stages to run: train, 2 sample",
        "train: seed 0",
        "train: seed 0: done in 2 min 5 s, 1 of 3 stages",
        "e is complete.",
    ]


def test_a_mistake_is_one_panel_with_its_sentence_log_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _write_failure("train", "logs/train.log", "mistake", "row 3: the prompt is too long.")
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(started(1, "train", "train: seed 0", "logs/train.log"), error("RuleException", COMMAND_LINE))
        shown.tell(failed(1), record("Shutting down, this might take some time."), END)
    title, *lines, _ = [line.strip() for line in text.getvalue().splitlines()][1:]
    assert "A stage failed" in title
    assert lines == [
        "train, seed 0",
        "row 3: the prompt is too long.",
        "Log: logs/train.log",
        "",
        "After fixing this, resume with:",
        "snakemake --cores all target",
    ]


def test_a_job_that_fails_and_starts_again_has_failed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    start = started(1, "train", "train: seed 0", "logs/train.log")
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(start, failed(1), record("Trying to restart job 1."), start)
        assert text.getvalue().splitlines() == ["train: seed 0", "train: seed 0, again"]
        shown.tell(finished(1), started(2, "score", "score: base", "logs/score.log"), failed(2), END)
    assert "A stage failed" in text.getvalue()
    assert "score, base" in text.getvalue()


def test_several_failures_are_in_one_panel_and_a_failure_is_told_at_once_while_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _write_failure("sample", "logs/a.log", "mistake", "one.")
    _write_failure("sample", "logs/b.log", "bug", "two.")
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(
            started(1, "sample", "sample: base", "logs/a.log"), started(2, "sample", "sample: trained", "logs/b.log")
        )
        shown.tell(failed(1, at=NOW + 3), failed(2), END)
    output = text.getvalue()
    assert "sample: base: failed after 3 s. Still running: sample: trained" in output
    assert "2 stages failed" in output
    assert [output.count(sentence) for sentence in ("one.", "two.", "resume with")] == [1, 1, 1]


def test_ctrl_c_is_told_by_what_the_stage_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    _write_failure("train", "logs/train.log", "stopped", "stopped at step 43; the same command goes on from there.")
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(started(1, "train", "train: seed 0", "logs/train.log"))
        shown.tell(record("Terminating processes on user request, this might take some time."))
        shown.tell(error("RuleException", COMMAND_LINE), END)
    assert "train, seed 0: stopped at step 43; the same command goes on from there." in text.getvalue()
    assert "Log:" not in text.getvalue()
    assert "mended" not in text.getvalue()


def test_a_stage_that_left_no_record_or_an_old_one_is_still_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    _write_failure("train", "logs/train.log", "mistake", "of yesterday.", time=NOW - 86_400)
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(started(1, "train", "train: seed 0", "logs/train.log"), failed(1), END)
    assert failures.WITHOUT_A_WORD in text.getvalue()
    assert "yesterday" not in text.getvalue()


def test_a_log_of_snakemakes_on_a_full_disk_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)  # put back afterwards
    with screen(monkeypatch, *ARGUMENTS) as (_, text):
        log = logging.FileHandler("/dev/full")
        log.handle(logging.makeLogRecord({"msg": "line"}))
        with suppress(OSError):
            log.close()
    assert text.getvalue() + capsys.readouterr().err == ""


def test_under_dvc_there_is_no_plan_and_dvc_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DVC_STAGE", "train@0")
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(plan(train=1, convert=1), started(1, "train", "train: seed 0", "logs/train.log"), failed(1), END)
    assert text.getvalue().startswith("train: seed 0\n")
    assert "dvc repro" in text.getvalue()
    monkeypatch.setenv("DVC_ROOT", str(tmp_path.parent))  # in the copy of an experiment
    command = "dvc exp run --temp -n fast -S training.steps=3"
    DRIVER.parent.mkdir()
    write_json(DRIVER, asdict(Holder(process=Process.current(), command=command)))
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(started(1, "train", "train: seed 0", "logs/train.log"), failed(1), END)
    assert command in text.getvalue()
    assert "repro" not in text.getvalue()


def test_a_dry_run_counts_its_jobs_once_and_keeps_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "-n", dryrun=True, stdout=True) as (shown, text):
        shown.tell(plan(train=2), started(1, "train", "train: seed 0", "logs/train.log"), plan(train=2))
        shown.tell(
            record("Reasons:\n    (check individual jobs above for details)\n    params have changed:\n        train")
        )
        shown.tell(record("Some jobs were triggered by provenance information, see ..."))
    assert text.getvalue() == "Job stats:\njob  count\nReasons:\n    params have changed:\n        train\n"
    assert os.environ["DAGRPO_SCREEN"] == "before"


def test_quiet_and_verbose_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    told = (plan(train=2), started(1, "train", "train: seed 0", "logs/train.log"), failed(1), END)
    with screen(monkeypatch, quiet={"all"}) as (shown, text):
        shown.tell(*told)
    assert text.getvalue().lstrip().startswith("─ A stage failed")
    with screen(monkeypatch, verbose=True, quiet={"rules"}) as (shown, text):
        shown.tell(*told)
    assert text.getvalue().startswith("Job stats:")
    assert "A stage failed" in text.getvalue()


@pytest.mark.parametrize(
    ("exception", "text", "expected"),
    [
        (
            "Refusal",
            'Refusal in file "/p/common.smk", line 23:\nparams.yaml: correct it.\n  File "/p/common.smk", line 23, in <module>\n',
            "params.yaml: correct it.\n",
        ),
        (
            "InputFunctionException",
            "InputFunctionException in rule sample:\nError:\n  Refusal:\n    `x` is no task.\nWildcards:\n  task=x\nTraceback:\n",
            "`x` is no task.\n",
        ),
        (
            "UserError",
            'UserError in file "/p/x.smk", line 2:\nno plug-in x.\n  File "/p/j.py", line 9, in f',
            "no plug-in x.\n",
        ),
        (
            "MissingRuleException",
            "MissingRuleException:\nNo rule to produce x.",
            "MissingRuleException:\nNo rule to produce x.\n",
        ),
        (
            "ValueError",
            "Traceback\n\nValueError: Invalid config definition: Config entry must start ...\n",
            "--config training.steps=3: Snakemake takes no dots in a name; write --config training__steps=3.\n",
        ),
    ],
)
def test_a_refusal_is_its_sentence_and_other_errors_are_snakemakes(
    monkeypatch: pytest.MonkeyPatch, exception: str, text: str, expected: str
) -> None:
    with screen(monkeypatch, "--config", "training.steps=3") as (shown, output):
        shown.tell(error(exception, text))
    assert output.getvalue() == expected


def test_the_screen_and_the_stages_agree_on_names() -> None:
    assert handler.SCREEN == failure_report.SCREEN
    assert {failures.CRASH, failures.STOPPED} <= set(failure_report.Kind)
    assert Refusal.__name__ in handler.REFUSALS


def test_the_package_imports_nothing_of_dagrpo() -> None:
    program = (
        "import sys, snakemake_logger_plugin_dagrpo; print([n for n in sys.modules if n.partition('.')[0] == 'dagrpo'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "written",
    [
        {"kind": "mistake", "sentence": "a\x1b[2J\u202e\ud800" * 10_000, "log": "l\x1b[2J\ud800"},
        {"kind": "mistake", "sentence": "s" * 900_000, "log": "l" * 90_000},
        {"kind": [], "sentence": {}, "log": None},
    ],
)
def test_what_anybody_may_have_written_neither_floods_nor_controls_the_terminal(
    written: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = failure_report.path_of("train", Path("logs/train.log"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**written, "time": NOW}))
    with screen(monkeypatch, *ARGUMENTS) as (shown, text):
        shown.tell(started(1, "train", "train: seed 0", "logs/train.log"), failed(1), END)
    said = text.getvalue()
    assert "train, seed 0" in said
    assert all(line.isprintable() for line in said.splitlines())
    assert len(said) < 20_000
