"""Megatron-LM's own parser and validation take what training.backend megatron_lm writes, and the stand-in has its options.

DAGRPO_MEGATRON_LM names a checkout of commit d98e8a6, and DAGRPO_MEGATRON_LM_PYTHON the Python of an environment for it on a CPU: torch,
triton, transformers, openai, fastapi, wandb, tensorboard and what they need.
"""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import runs

from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_json
from dagrpo_foreign.files import write_inputs
from dagrpo_megatron.backend import running
from dagrpo_megatron.backend.mapping import FORMAT

pytestmark = pytest.mark.nightly
STAND_IN = Path(__file__).with_name("stand_in") / "megatron/training/options.tsv"
SOURCE, PYTHON = "DAGRPO_MEGATRON_LM", "DAGRPO_MEGATRON_LM_PYTHON"
FITTING: dict[str, Any] = {
    "rollout": {"deterministic": False, "dtype": "bfloat16"},
    "training": {"dtype": "bfloat16", "prompts_per_step": 4, "mini_batches": 2, "backend": {"name": "megatron_lm"}},
    "runtime": {"training": {"processes": 2}},
}


@pytest.fixture(scope="module")
def megatron_lm() -> dict[str, str]:
    """Checkout and Python, as keys of runtime.backend."""
    named = {"source": os.environ.get(SOURCE, ""), "python": os.environ.get(PYTHON, "")}
    if not Path(named["source"], "train_rl.py").is_file() or not Path(named["python"]).is_file():
        pytest.skip(f"{SOURCE} names no checkout of Megatron-LM, or {PYTHON} no Python of an environment for it")
    return named


def check(changed: dict[str, Any], settings: dict[str, Any], megatron_lm: dict[str, str], folder: Path) -> Any:
    """Return what Megatron-LM's own code finds of a run of the tiny model. Raises UserError with its refusal."""
    params = parse(merged(merged(FITTING, {"runtime": {"backend": megatron_lm}}), changed))
    run = runs.training_run(runs.make_inputs(folder), folder / "state", folder / "out", 4)
    sections = {name: getattr(params, name) for name in ("rollout", "reward", "algorithm", "training", "runtime")}
    run, state = replace(run, **sections), folder / "state"
    inputs = write_inputs(run, state, FORMAT)
    job = running.write_agent_job(run, inputs, state, 0, state / "attempt.jsonl")
    running.check_command(run, running.command(run, settings, inputs, state, job), state, job)
    return read_json(state / "check.reply.json")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {
            "algorithm": {
                "aggregation": "seq-mean-token-mean",
                "correction": {"name": "none"},
                "kl": {"coefficient": 0.01},
            },
            "training": {"learning_rate_warmup_steps": 300},
            "runtime": {"engine": {"tensor_parallel": 2}, "training": {"activation_checkpointing": True}},
        },
    ],
)
def test_megatron_lm_takes_the_command_line_and_grades_by_our_process(
    changed: dict[str, Any], megatron_lm: dict[str, str], tmp_path: Path
) -> None:
    found = check(changed, {"log-throughput": True}, megatron_lm, tmp_path)
    assert found["version"].startswith("0.20.0")
    assert (found["sequences"], found["graded"]) == (16, 0.0)
    assert found["data_parallel"] == (1 if changed else 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rl-generation-lag": 2}, "requires --rl-partial-rollouts"),
        ({"rl-generation-lags": 2}, "unrecognized arguments"),
    ],
)
def test_megatron_lms_own_refusal_is_ours(
    settings: dict[str, Any], message: str, megatron_lm: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        check({}, settings, megatron_lm, tmp_path)


def test_the_stand_in_has_the_options_of_megatron_lm(megatron_lm: dict[str, str]) -> None:
    program = Path(__file__).with_name("megatron_options.py")
    command = [megatron_lm["python"], str(program), megatron_lm["source"]]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.partition("OPTIONS\n")[2].splitlines() == STAND_IN.read_text().splitlines()
