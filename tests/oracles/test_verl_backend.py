"""verl's own code composes, validates and grades what training.backend verl writes, and the stand-in has its keys.

DAGRPO_OBJECTIVES_PYTHON names the Python of an environment with verl, as `make oracle` does.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer import runs

from dagrpo.config.schema import parse
from dagrpo.trainer.foreign.files import FINDINGS, write_inputs
from dagrpo.trainer.verl import running
from dagrpo.trainer.verl.mapping import configuration
from dagrpo.utils.files import read_json

STAND_IN = Path(__file__).parents[1] / "trainer/verl/stand_in/verl/trainer/config/ppo_trainer.yaml"
ALGORITHMS: list[dict[str, Any]] = [
    {},
    {"loss": {"name": "gspo"}, "correction": {"name": "sequence_masked"}, "kl": {"coefficient": 0.001}},
    {
        "loss": {"name": "cispo"},
        "advantage": {"name": "rloo"},
        "aggregation": "constant",
        "correction": {"name": "none"},
    },
    {"loss": {"name": "clip_cov"}, "correction": {"name": "token_masked"}, "terms": {"entropy": {"coefficient": 0.01}}},
    {"loss": {"name": "dro"}, "advantage": {"name": "opo"}, "kl": {"coefficient": 0.1, "place": "reward"}},
]


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the environment with verl."""
    path = os.environ.get("DAGRPO_OBJECTIVES_PYTHON", "")
    if not Path(path).is_file():
        pytest.skip("DAGRPO_OBJECTIVES_PYTHON names no Python of an environment with verl: `make oracle` makes one")
    return path


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_verl_accepts_the_configuration_and_grades_by_our_process(
    algorithm: dict[str, Any], python: str, tmp_path: Path
) -> None:
    params = parse(
        {
            "rollout": {"deterministic": False, "dtype": "bfloat16"},
            "algorithm": algorithm,
            "training": {"dtype": "bfloat16", "prompts_per_step": 4, "mini_batches": 2, "backend": {"name": "verl"}},
        }
    )
    run = runs.training_run(runs.make_inputs(tmp_path), tmp_path / "state", tmp_path / "out", 4)
    run = replace(
        run, rollout=params.rollout, algorithm=params.algorithm, training=params.training, reward=params.reward
    )
    files = running.files_of(run, write_inputs(run, tmp_path / "state"), tmp_path / "state")
    settings = {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.6}
    running._check(python, configuration(run, settings, run.seed, files), tmp_path / "state")
    found = read_json(tmp_path / "state" / FINDINGS)
    assert found["rows"] == 10
    assert found["graded"] == {"reward": 0.0, "acc": 0.0, "accuracy": 0.0}


def test_the_stand_in_has_the_keys_of_verl(python: str) -> None:
    code = "import verl, pathlib; print(pathlib.Path(verl.__file__).parent)"
    folder = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()[-1])
    theirs = yaml.safe_load((folder / "trainer/config/_generated_ppo_trainer.yaml").read_text())
    assert json.dumps(yaml.safe_load(STAND_IN.read_text())) == json.dumps(theirs)
