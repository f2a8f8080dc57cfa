"""Files of another trainer: its checkpoints, its lines, its check, its weights."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import runs

from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import CastTensors
from dagrpo.core.errors import TransientError, UserError
from dagrpo.trainer.backend_files import Program
from dagrpo.trainer.foreign import files
from dagrpo.trainer.foreign.files import LATEST, checked, latest, take_weights
from dagrpo.trainer.run import no_report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_they_have_the_dtype_of_the_initial_checkpoint_and_provenance_that_of_the_trainer(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    run = runs.training_run(runs.make_inputs(tmp_path), tmp_path / "state", tmp_path / "out", 1)
    initial = open_tensors(run.initial)
    take_weights(run, CastTensors(initial, dtype), tmp_path)
    assert open_tensors(run.policy).specs == initial.specs
    assert run.facts == {"saved_in": str(dtype).removeprefix("torch.")}


@pytest.mark.parametrize("name", ["global_step_{}", "iter_{:07d}"])
def test_an_emptied_tracker_names_the_newest_checkpoint_again(name: str, tmp_path: Path) -> None:
    assert latest(tmp_path) == 0
    for step in (8, 10):
        (tmp_path / name.format(step)).mkdir()
    (tmp_path / LATEST).write_text("")  # a kill between its opening and its writing
    assert latest(tmp_path) == 10
    assert (tmp_path / LATEST).read_text() == "10"


def test_half_a_line_at_a_kill_hides_no_exit_code(tmp_path: Path) -> None:
    program = "import sys; open(sys.argv[1], 'w').write('{\"step\": 1}\\n{\"ste'); sys.exit(3)"
    metrics = tmp_path / "metrics.jsonl"
    with pytest.raises(TransientError, match="ended with exit code 3"):
        Program(command=[sys.executable, "-c", program, str(metrics)], metrics=metrics, log=tmp_path / "log").run(
            no_report
        )


LATE = """
import json, os, sys, time

def add(step):
    with open(sys.argv[1], "a") as file:
        print(json.dumps({"step": step}), file=file)

add(1)
if os.fork() == 0:
    time.sleep(1)
    add(2)
"""


@pytest.mark.parametrize(("patience", "steps"), [(0.0, 1), (30.0, 2)])
def test_a_last_line_that_a_network_file_system_shows_late_is_waited_for(
    patience: float, steps: int, tmp_path: Path
) -> None:
    metrics, began = tmp_path / "metrics.jsonl", time.monotonic()
    command = [sys.executable, "-c", LATE, str(metrics)]
    program = Program(command=command, metrics=metrics, log=tmp_path / "log", last_step=2, patience=patience)
    assert len(program.run(no_report)) == steps
    assert time.monotonic() - began < 20, "no longer than for the line"


def test_a_last_line_that_never_comes_is_waited_for_in_vain_and_not_at_all_after_a_fault(tmp_path: Path) -> None:
    metrics, began = tmp_path / "metrics.jsonl", time.monotonic()
    given: dict[str, Any] = {"metrics": metrics, "log": tmp_path / "log", "last_step": 2}
    assert Program(command=[sys.executable, "-c", ""], patience=0.5, **given).run(no_report) == []
    with pytest.raises(TransientError, match="ended with exit code 3"):
        Program(command=[sys.executable, "-c", "raise SystemExit(3)"], patience=60.0, **given).run(no_report)
    assert time.monotonic() - began < 30


def test_a_check_that_does_not_end_is_an_error_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.2)
    program = tmp_path / "check.py"
    program.write_text("import time; time.sleep(60)")
    with pytest.raises(UserError, match=r"verl's own code has not ended within .* see .*check\.log"):
        checked(sys.executable, str(program), {}, tmp_path, "verl")
