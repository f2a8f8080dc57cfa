"""A stage in two processes, from its command line through supervisor and launcher to the ranks; and once more."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainer.runs import ROOT, make_inputs

from dagrpo.files import read_json, write_json

FILES = {
    "--input": ("model=model/manifest.json", "train=train.parquet"),
    "--output": ("manifest=sft/manifest.json", "provenance=sft/provenance.json"),
    "--log": ("logs/sft.log",),
}
PARAMS = {"sft": {"steps": 2, "batch_size": 4}, "rollout": {"deterministic": True}}
RUNTIME = {"sft": {"processes": 2}}


def _start(inputs: Path, folder: Path) -> "subprocess.Popen[str]":
    shutil.copytree(inputs, folder)
    write_json(folder / "job.json", {"stage": "sft", "params": PARAMS, "code": []})
    write_json(folder / "runtime.json", RUNTIME)
    options = ["--job", "job.json", "--runtime", "runtime.json", "--experiment", "e", "--seed", "3"]
    options += [word for option, values in FILES.items() for value in values for word in (option, value)]
    environment = os.environ | {"DAGRPO_TRACKING": "off", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "workflow/scripts/stage.py"), *options]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """At the same time, which on two cores takes half as long."""
    base = tmp_path_factory.mktemp("runs")
    (base / "inputs").mkdir()
    make_inputs(base / "inputs")
    folders = base / "one", base / "other"
    for process in [_start(base / "inputs", folder) for folder in folders]:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    return folders


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "sft").iterdir()}


def test_two_runs_of_two_processes_leave_the_same_bytes(two_runs: tuple[Path, Path]) -> None:
    one, other = map(_bytes, two_runs)
    assert one == other
    assert read_json(two_runs[0] / "sft/provenance.json")["runtime"]["sft"]["processes"] == 2


def test_each_process_has_a_log_and_only_rank_0_records_the_stage(two_runs: tuple[Path, Path]) -> None:
    for folder in two_runs:
        assert {path.name for path in (folder / "logs").iterdir()} == {
            "sft.log",
            "sft.rank_1.log",
            "sft.execution.json",
        }
        assert len(list((folder / ".state/ran/e").iterdir())) == 1
        assert not list((folder / ".state").glob("failures/*"))
