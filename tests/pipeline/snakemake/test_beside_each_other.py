"""Two runs at once in one folder: the second is refused before anything is removed, and Ctrl-C stops the first."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones

SFT = "results/tiny/runs/seed_3/sft/manifest.json"
SNAKEMAKE = ("snakemake", "--cores", "all", SFT)
DVC = ("dvc", "repro", "sft@tiny-3")


@pytest.fixture(scope="module")
def folder(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy in which the finished fine-tuning is asked for with more steps than a test can wait for."""
    folder = clones.copied(run_by_snakemake, tmp_path_factory.mktemp("beside") / "clone")
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("steps: 90", "steps: 900000"))
    return folder


@pytest.fixture(params=[SNAKEMAKE, pytest.param(DVC, marks=pytest.mark.nightly)], ids=["snakemake", "dvc"])
def first(request: pytest.FixtureRequest, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A run that is at work on that fine-tuning, ended by the test's end."""
    process = clones.start(folder, *request.param)
    deadline = time.monotonic() + 120
    while not clones.processes(folder, "/sft-", "--attempt"):
        assert process.poll() is None, (folder / "output.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield process
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while clones.processes(folder, "/sft-"):  # they notice within a second
        assert time.monotonic() < deadline + 60
        time.sleep(0.1)


@pytest.mark.dag
def test_the_second_is_refused_and_the_first_works_on(first: "subprocess.Popen[str]", folder: Path) -> None:
    before = clones.outputs(folder)
    by_snakemake = isinstance(first.args, tuple) and first.args[0] == "snakemake"
    for command in (SNAKEMAKE, DVC):
        said = clones.refused(folder, *command)
        assert "unlock" not in said
        reasons = ("is being written by", "is being run by", "is at work", "Unable to acquire lock")
        assert any(reason in said for reason in reasons), said
    kept = clones.outputs(folder)
    assert kept == (before if by_snakemake else kept)
    assert first.poll() is None
    assert clones.processes(folder, "/sft-", "--attempt")
    if by_snakemake:
        _stopped_with_ctrl_c(first, folder)


def _stopped_with_ctrl_c(first: "subprocess.Popen[str]", folder: Path) -> None:
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait(timeout=120) != 0
    clones.require_no_process(folder)
    shown = (folder / "output.txt").read_text()
    assert re.search(r"sft, seed 3: stopped.*; the same command", shown)
    for noise in ("crashed", "Traceback", "stage.py"):
        assert noise not in shown
