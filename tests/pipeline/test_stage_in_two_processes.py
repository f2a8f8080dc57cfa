"""A stage in two processes, from its command line through supervisor and launcher to the ranks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainer.runs import ROOT, make_inputs

from dagrpo.utils.files import read_json, write_json

pytestmark = pytest.mark.nightly
FILES = {
    "--input": ("model=model/manifest.json", "train=train.parquet"),
    "--output": ("manifest=sft/manifest.json", "provenance=sft/provenance.json"),
    "--log": ("logs/sft.log",),
}
PARAMS = {"sft": {"steps": 2, "batch_size": 4}, "rollout": {"deterministic": True}}
RUNTIME = {"sft": {"processes": 2}}


def _start(inputs: Path, folder: Path) -> "subprocess.Popen[str]":
    shutil.copytree(inputs, folder)
    write_json(folder / "job.json", {"stage": "sft", "params": PARAMS, "code": "code"})
    write_json(folder / "code.json", {})
    write_json(folder / "runtime.json", RUNTIME)
    options = ["--job", "job.json", "--runtime", "runtime.json", "--experiment", "e", "--seed", "3"]
    options += [word for option, values in FILES.items() for value in values for word in (option, value)]
    environment = os.environ | {"DAGRPO_TRACKING": "off", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "workflow/scripts/stage.py"), *options]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the stage has ended well."""
    base = tmp_path_factory.mktemp("runs")
    (base / "inputs").mkdir()
    make_inputs(base / "inputs")
    output, _ = (process := _start(base / "inputs", base / "one")).communicate(timeout=600)
    assert process.returncode == 0, output
    return base / "one"


def test_a_stage_of_two_processes_records_that_it_was_two(ended: Path) -> None:
    assert read_json(ended / "sft/provenance.json")["runtime"]["sft"]["processes"] == 2
    assert list((ended / "sft").glob("*.safetensors"))


def test_each_process_has_a_log_and_only_rank_0_records_the_stage(ended: Path) -> None:
    assert {path.name for path in (ended / "logs").iterdir()} == {
        "sft.log",
        "sft.curve.jsonl",
        "sft.rank_1.log",
        "sft.execution.json",
    }
    assert len(list((ended / ".state/ran/e").iterdir())) == 1
    assert not list((ended / ".state").glob("failures/*"))
