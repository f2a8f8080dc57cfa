"""A crash is started again and goes on; a mistake is final; a signal ends it. Played by a stage of a few lines."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.everyday import everyday
from tests.waiting import wait_until

from dagrpo.config.places import ROOT

pytestmark = pytest.mark.slow
PROGRAM = """
import atexit, os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from dagrpo.utils import locks as sole
from dagrpo.core.errors import TransientError, UserError
from dagrpo.pipeline import supervisor
from dagrpo.pipeline.declaration import Stage

def work(job):
    attempts = Path("attempts")
    attempts.write_text((attempts.read_text() if attempts.exists() else "") + "x")
    number = len(attempts.read_text())
    behaviour = job.params["behaviour"]
    if behaviour == "mistake":
        raise UserError("params.yaml: correct it.")
    if behaviour == "always killed" or behaviour.startswith("killed once") and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "server died once" and number == 1:
        raise TransientError("the server died.")
    if behaviour == "always a bug":
        raise KeyError("bug")
    if behaviour == "slow, told twice":
        atexit.register(os.kill, os.getpid(), signal.SIGTERM)
    if behaviour.startswith("slow, stopped in a destructor by"):
        class Last:
            def __del__(self):
                signal.raise_signal(int(behaviour.split()[-1]))
        Last()
    if behaviour.startswith("slow") or (behaviour == "killed once, then slow" and number == 2):
        Path("started").touch()
        time.sleep(60)
    job.output("result").write_text("done")

stage = Stage(name="probe", work=work, reads=(), restarts=2)
stage = replace(stage, processes=lambda runtime: int(os.environ.get("TEST_PROCESSES", "1")))
supervisor.all_stages = lambda: {"probe": stage}
supervisor.main(sys.argv[1:])
"""

# Hears of no signal, as a process that waits in native code.
DEAF = "import signal; from dagrpo.utils import watchdog; watchdog.SECONDS_TO_END = 0.5; " + (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "stage.py").write_text(PROGRAM)
    (tmp_path / "runtime.json").write_text("{}")
    files = ["--output", "result=result.txt", "--output", "provenance=provenance.json", "--log", "x.log"]
    return [sys.executable, "stage.py", "--job", "job.json", "--runtime", "runtime.json", "--experiment", "e", *files]


def _run(command: list[str], folder: Path, behaviour: str, **environment: str) -> subprocess.Popen[str]:
    (folder / "job.json").write_text(json.dumps({"stage": "probe", "params": {"behaviour": behaviour}, "code": "code"}))
    (folder / "code.json").write_text("{}")
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"DAGRPO_TRACKING": "off"} | environment,
        stdout=-1,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("behaviour", everyday(["killed once"], ["killed once", "server died once"]))
def test_what_broke_is_started_again_and_finishes(command: list[str], tmp_path: Path, behaviour: str) -> None:
    process = _run(command, tmp_path, behaviour)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert (tmp_path / "attempts").read_text() == "xx"
    assert (tmp_path / "result.txt").read_text() == "done"
    assert "attempt 1 crashed" in output


@pytest.mark.parametrize(
    ("behaviour", "attempts", "kind", "sentence"),
    everyday(
        [("mistake", "x", "mistake", "params.yaml: correct it.")],
        [
            ("mistake", "x", "mistake", "params.yaml: correct it."),
            ("always a bug", "xxx", "bug", "a bug in "),
            ("always killed", "xxx", "crash", "it ended with signal 9."),
        ],
    ),
)
@pytest.mark.parametrize("screen", ["", "snakemake"])
def test_a_mistake_is_final_a_crash_is_tried_again_and_snakemakes_screen_shows_the_last_failure(
    command: list[str], tmp_path: Path, screen: str, behaviour: str, attempts: str, kind: str, sentence: str
) -> None:
    process = _run(command, tmp_path, behaviour, **({"DAGRPO_SCREEN": screen} if screen else {}))
    output, _ = process.communicate(timeout=60)
    failure = _failure(tmp_path)
    assert (failure["what"], failure["kind"], failure["log"]) == ("probe", kind, "x.log")
    assert failure["sentence"].startswith(sentence)
    assert (tmp_path / "attempts").read_text() == attempts
    if kind == "mistake":
        assert process.returncode == 1
        assert output == ("" if screen else f"probe: {sentence}\nLog: x.log\n")
    if kind == "bug":
        assert (tmp_path / "x.log").read_text().count("KeyError: 'bug'") == 3
        assert output.count("Traceback") == 1


def _failure(folder: Path) -> dict[str, Any]:
    (record,) = (folder / ".state/failures").iterdir()
    return dict(json.loads(record.read_text()))


@pytest.mark.parametrize("processes", everyday(["1"], ["1", "2"]))
def test_a_stage_that_is_told_to_stop_twice_is_not_started_again(
    command: list[str], tmp_path: Path, processes: str
) -> None:
    process = _run(command, tmp_path, "slow, told twice", TEST_PROCESSES=processes)
    wait_until((tmp_path / "started").exists)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert _failure(tmp_path)["kind"] == "stopped"
    assert "Traceback" not in output
    assert not (tmp_path / "result.txt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_that_comes_in_a_destructor_is_not_lost(
    command: list[str], tmp_path: Path, number: int
) -> None:
    process = _run(command, tmp_path, f"slow, stopped in a destructor by {int(number)}")
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    assert not (tmp_path / "result.txt").exists()


@pytest.mark.nightly
def test_an_interrupt_from_the_terminal_ends_a_stage_that_was_started_again(command: list[str], tmp_path: Path) -> None:
    process = _run(command, tmp_path, "killed once, then slow")
    wait_until((tmp_path / "started").exists)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output.endswith("probe: stopped; the same command starts it again.\n")
    assert process.returncode == 128 + signal.SIGINT
    assert (tmp_path / "attempts").read_text() == "xx"


def test_a_stage_whose_starter_is_gone_before_it_looks_ends_at_once(command: list[str], tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    process = _run(command, tmp_path, "slow", DAGRPO_STARTED_BY=f"{socket.gethostname()}:{gone.pid}")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert not (tmp_path / "attempts").exists()


def test_a_second_stage_with_the_same_outputs_is_told_who_writes_them_and_touches_nothing(
    command: list[str], tmp_path: Path
) -> None:
    first = _run(command, tmp_path, "slow")
    wait_until((tmp_path / "started").exists)
    log = (tmp_path / "x.log").read_text()
    second = _impatient(command, tmp_path)
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 1
    assert re.search(
        r"(provenance.json|result.txt) is being written by `.*` \(process \d+\): wait for it to end", output
    )
    assert (tmp_path / "attempts").read_text() == "x"
    assert (tmp_path / "x.log").read_text() == log
    first.terminate()
    first.communicate(timeout=60)


def _impatient(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """A second execution that hardly waits for the first."""
    (folder / "impatient.py").write_text(
        PROGRAM.replace("supervisor.main", "sole.SECONDS_TO_WAIT = 0.5\nsupervisor.main")
    )
    return _run([sys.executable, "impatient.py", *command[2:], "--log", "second.log"], folder, "slow")


STARTER = """
import os, subprocess, sys
from pathlib import Path
from dagrpo.utils.watchdog import STARTED_BY, name_as_starter
os.environ[STARTED_BY] = name_as_starter()
process = subprocess.Popen([sys.executable, "first_line.py"])
print(process.pid, flush=True)
process.wait()
"""
FIRST_LINE = """
import time
from dagrpo.utils.watchdog import stop_with_the_workflow
stop_with_the_workflow()
from pathlib import Path
Path("started").touch()
{work}
"""


@pytest.mark.nightly
@pytest.mark.parametrize("work", ["time.sleep(60)", DEAF])
def test_a_stage_that_still_imports_ends_with_its_starter_whatever_that_is_called(work: str, tmp_path: Path) -> None:
    (tmp_path / "first_line.py").write_text(FIRST_LINE.format(work=work))
    starter = subprocess.Popen([sys.executable, "-c", STARTER], cwd=tmp_path, stdout=-1, text=True)
    assert starter.stdout is not None
    stage = psutil.Process(int(starter.stdout.readline()))
    wait_until((tmp_path / "started").exists)
    starter.kill()
    starter.communicate()
    wait_until(lambda: not stage.is_running() or stage.status() == psutil.STATUS_ZOMBIE)


STOPPED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
FROM_A_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


def test_a_stage_that_is_stopped_while_it_imports_ends_without_a_traceback(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "workflow/scripts/stage.py", tmp_path / "stage.py")
    (tmp_path / "own_code.py").write_text(STOPPED)
    # In the background of a shell the tests ignore Ctrl-C, and so would the stage.
    start = [sys.executable, "-c", FROM_A_TERMINAL, sys.executable, "stage.py"]
    done = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_stage_reads_no_answer_from_its_starter(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "workflow/scripts/stage.py", tmp_path / "stage.py")
    (tmp_path / "own_code.py").write_text("import sys\nprint(repr(sys.stdin.read()))\nraise SystemExit(0)\n")
    done = subprocess.run(
        [sys.executable, "stage.py"], cwd=tmp_path, input="y\n", capture_output=True, text=True, check=True
    )
    assert done.stdout == "''\n"
