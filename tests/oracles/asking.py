"""Runs a script of this folder in the environment that has TRL and verl: DAGRPO_OBJECTIVES_PYTHON names its Python."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles.batches import Kind, batch_of

SEEDS = 3
EXACT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What gives each token a number here, and what does elsewhere."""

    name: str
    ours: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]  # -> [tokens]
    library: str  # of estimators.py
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind
    near: float = EXACT

    def __str__(self) -> str:
        options = "".join(f"-{name}={value}" for name, value in self.options.items())
        return f"{self.name}-{self.library}-{self.function}{options}"


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


def estimates(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What the libraries compute of random batches. [cases x SEEDS]"""
    batches, asked = {}, []
    for place, case in enumerate(cases):
        for seed in range(SEEDS):
            batches[f"{place} {seed}"] = {key: rows.tolist() for key, rows in batch_of(case.kind, seed).items()}
            of = {"library": case.library, "function": case.function, "options": case.options}
            asked.append(of | {"batch": f"{place} {seed}"})
    return answers("estimators.py", {"batches": batches, "cases": asked})


def require_equal(case: Case, seed: int, theirs: Mapping[str, Any], record: Callable[[str, object], None]) -> None:
    """Compares both on the tokens of the policy, and records the largest difference."""
    require(case.library.partition("_")[0], theirs)
    batch = batch_of(case.kind, seed)
    ours = case.ours(batch)
    expected = torch.tensor(theirs["values"], dtype=torch.float64)[batch["mask"].bool()]
    record("largest_difference", float((ours - expected).abs().max()))
    torch.testing.assert_close(ours, expected, rtol=case.near, atol=case.near)
    assert ours.any(), "a comparison of zeros"
