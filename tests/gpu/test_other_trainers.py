"""verl and Megatron-LM themselves train two steps on one GPU.

DAGRPO_VERL_PYTHON names the Python of an environment for verl, DAGRPO_MEGATRON_LM a checkout of Megatron-LM, DAGRPO_MEGATRON_LM_PYTHON its
Python (docs/backends.md).
"""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.conftest import ONE
from tests.trainer import foreign_runs

from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.utils.tables import read_parquet

SETTINGS: dict[str, dict[str, Any]] = {
    "verl": {  # without flash-attn, which its lock does not have
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.use_remove_padding": False,
    },
    "megatron_lm": {"cuda-graph-impl": "none"},
}


def _train_two_steps(
    trainer: str, folder: Path, python: str | None, source: str | None, initial: Path | None = None
) -> None:
    """Train from `initial`, or from the tiny model, and require what the stage is to leave."""
    changes = {
        "rollout": {"max_new_tokens": 64},
        "training": {"steps": 2, "learning_rate": 1e-3, "backend": {"name": trainer, "settings": SETTINGS[trainer]}},
        "runtime": {"backend": {"python": python, "source": source}, "training": {"processes": 1}},
    }
    run = foreign_runs.run_in(folder, changes)
    run = run if initial is None else replace(run, initial=initial)
    foreign_runs.train(run)
    table = read_parquet(run.metrics).to_pydict()
    assert table["step"] == [1, 2]
    assert all(map(math.isfinite, [*table["reward/mean"], *table["policy/grad_norm"]]))
    verify(run.policy)
    assert open_tensors(run.policy).specs == open_tensors(run.initial).specs


@pytest.mark.gpu
@ONE
@pytest.mark.parametrize("trainer", SETTINGS)
def test_two_steps_are_followed_and_leave_a_policy_of_the_initial_tensors(
    trainer: str, initial: Path, tmp_path: Path
) -> None:
    name = f"DAGRPO_{trainer.upper()}"
    python, source = os.environ.get(f"{name}_PYTHON"), os.environ.get(name)
    if python is None or (trainer == "megatron_lm" and source is None):
        pytest.skip(f"{name}_PYTHON names no Python of an environment for {trainer}, or {name} no checkout")
    _train_two_steps(trainer, tmp_path, python, source, initial)


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", SETTINGS)
def test_the_check_itself_passes_with_a_stand_in(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", foreign_runs.path_with(trainer))
    _train_two_steps(trainer, tmp_path, None, str(foreign_runs.STAND_INS[trainer]))
