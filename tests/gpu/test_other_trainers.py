"""verl and Megatron-LM themselves: two steps on one GPU, and what they have trained as the policy.

DAGRPO_VERL_PYTHON names the Python of an environment for verl, DAGRPO_MEGATRON_LM a checkout of Megatron-LM, DAGRPO_MEGATRON_LM_PYTHON its
Python (docs/backends.md).
"""

import os
from pathlib import Path

import pytest
from tests.gpu.conftest import ONE
from tests.gpu.other_trainers import SETTINGS, train_two_steps

STAND_INS = Path(__file__).parents[1] / "trainer"


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
    train_two_steps(trainer, tmp_path, python, source, initial)


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", SETTINGS)
def test_the_check_itself_passes_with_a_stand_in(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = str(STAND_INS / trainer / "stand_in")
    monkeypatch.setenv("PYTHONPATH", stand_in)
    train_two_steps(trainer, tmp_path, None, stand_in)
