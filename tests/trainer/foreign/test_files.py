"""Files of another trainer: its checkpoints, its lines, its check, its weights."""

import sys
from pathlib import Path

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
def test_they_have_the_dtype_of_the_initial_checkpoint(dtype: torch.dtype, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run = runs.training_run(runs.make_inputs(tmp_path), tmp_path / "state", tmp_path / "out", 1)
    initial = open_tensors(run.initial)
    take_weights(run, CastTensors(initial, dtype), tmp_path)
    assert open_tensors(run.policy).specs == initial.specs


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


def test_a_check_that_does_not_end_is_an_error_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.2)
    program = tmp_path / "check.py"
    program.write_text("import time; time.sleep(60)")
    with pytest.raises(UserError, match=r"verl's own code has not ended within .* see .*check\.log"):
        checked(sys.executable, str(program), {}, tmp_path, "verl")
