"""Runs a script of this folder in the environment that has TRL and verl: DAGRPO_OBJECTIVES_PYTHON names its Python."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


def answers(script: str, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the script makes of each of the cases. Skips the test where there is no such environment."""
    python = os.environ.get("DAGRPO_OBJECTIVES_PYTHON")
    if python is None or not Path(python).exists():
        pytest.skip(
            "DAGRPO_OBJECTIVES_PYTHON names no Python of an environment with TRL and verl: `make oracle` makes one"
        )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, Path(__file__).with_name(script)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


def require(library: str, answer: Mapping[str, Any]) -> None:
    """Skips the test where the library cannot be imported there."""
    if "unavailable" in answer:
        pytest.skip(f"{library} cannot be imported there: {answer['unavailable']}")
