"""SIGTERM or SIGINT to a workflow alone stops its stages and is KeyboardInterrupt in it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.everyday import everyday

WORKFLOW = """
import subprocess, sys
from dagrpo.pipeline.snakemake.stop import running_stages, stop_with_stages
stop_with_stages()
stage = subprocess.Popen(["bash", "-c", f"{sys.executable} stage.py; echo ended with $?"])
try:
    stage.wait()
except KeyboardInterrupt:
    stage.wait()
    print("interrupted", running_stages())
    sys.exit(1)  # as Snakemake does
"""
STAGE = """
import signal, subprocess, sys, time
if len(sys.argv) == 1:  # as a stage that supervises its attempts
    attempt = subprocess.Popen([sys.executable, "stage.py", "--attempt"])
    signal.signal(signal.SIGTERM, lambda *_: attempt.terminate())
    print("started", flush=True)
    sys.exit(128 - attempt.wait())
time.sleep(60)
"""


@pytest.mark.parametrize("sent", everyday([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_stops_the_stages_and_interrupts_the_workflow(tmp_path: Path, sent: signal.Signals) -> None:
    (tmp_path / "stage.py").write_text(STAGE)
    process = subprocess.Popen(
        [sys.executable, "-c", WORKFLOW],
        cwd=tmp_path,
        stdout=-1,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever the tests run in has made of it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(sent)
    output, _ = process.communicate(timeout=30)
    assert output.splitlines() == ["ended with 143", "interrupted []"]
    assert process.returncode == -sent, "a shell sees 128 and the signal: 130 after Ctrl-C"
