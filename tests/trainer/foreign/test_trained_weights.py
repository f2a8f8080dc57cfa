"""Weights of another trainer, taken back as the policy."""

from pathlib import Path

import pytest
import torch
from tests.trainer import runs

from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import CastTensors
from dagrpo.trainer.foreign.files import take_weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_they_have_the_dtype_of_the_initial_checkpoint(dtype: torch.dtype, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run = runs.training_run(runs.make_inputs(tmp_path), tmp_path / "state", tmp_path / "out", 1)
    initial = open_tensors(run.initial)
    take_weights(run, CastTensors(initial, dtype), tmp_path)
    assert open_tensors(run.policy).specs == initial.specs
