"""A stage in two processes, from its command line through supervisor and launcher to the ranks."""

import os
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


def test_a_stage_of_two_processes_has_a_log_of_each_and_only_rank_0_records_it(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    write_json(tmp_path / "job.json", {"stage": "sft", "params": PARAMS, "code": "code"})
    write_json(tmp_path / "code.json", {})
    write_json(tmp_path / "runtime.json", RUNTIME)
    options = ["--job", "job.json", "--runtime", "runtime.json", "--experiment", "e", "--seed", "3"]
    options += [word for option, values in FILES.items() for value in values for word in (option, value)]
    environment = os.environ | {"DAGRPO_TRACKING": "off", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "workflow/scripts/stage.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_json(tmp_path / "sft/provenance.json")["runtime"]["sft"]["processes"] == 2
    assert list((tmp_path / "sft").glob("*.safetensors"))
    logs = {path.name for path in (tmp_path / "logs").iterdir()}
    assert logs == {"sft.log", "sft.curve.jsonl", "sft.rank_1.log", "sft.execution.json"}
    assert len(list((tmp_path / ".state/ran/e").iterdir())) == 1
    assert not list((tmp_path / ".state").glob("failures/*"))
