"""A taskset of `verifiers` as rows: what the package lists, told by a stand-in of its worker."""

import json
import sys
from typing import Any

import pytest

from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.data.config import Data
from dagrpo.data.task import TaskRows, get_task
from dagrpo.pipeline.validation import require_fitting_tasks
from dagrpo.rewards.grading import Grader
from dagrpo_agents import verifiers


def task(number: int, prompt: Any = None) -> dict[str, Any]:
    asked = [{"role": "user", "content": f"{number}*7="}] if prompt is None else prompt
    return {"key": f"k{number}", "hash": f"h{number}", "prompt": asked}


def loaded(monkeypatch: pytest.MonkeyPatch, tasks: list[dict[str, Any]], program: str = "") -> TaskRows:
    """What is made of a taskset that lists these."""
    lines = "\n".join(map(json.dumps, tasks))
    command = [sys.executable, "-c", program or f"print({lines!r})"]
    monkeypatch.setattr(verifiers, "worker_command", lambda *_, **__: command)
    params = Data.model_validate({"verifiers": {"taskset": "sums", "train": 2, "test": 1}})
    return get_task("verifiers").load(params)


def test_the_first_tasks_are_held_out_and_each_row_tells_key_and_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = loaded(monkeypatch, [task(2), task(3), task(4)])
    assert [row.ground_truth for row in problems.splits["test"]] == ["k2@h2"]
    assert [row.ground_truth for row in problems.splits["train"]] == ["k3@h3", "k4@h4"]
    assert problems.splits["train"][1].prompt == ({"role": "user", "content": "4*7="},)
    assert problems.files.keys() == {"sums"}


@pytest.mark.parametrize(
    ("tasks", "program", "words"),
    [
        ([task(2), task(3)], "", "has 2 tasks, and data.verifiers asks for 3"),
        ([task(2), task(3), task(4, [])], "", "task k4 of sums has no prompt of text"),
        (
            [],
            "raise ImportError('no module sums')",
            r"cannot be loaded \(ImportError: no module sums\): put its folder",
        ),
    ],
)
def test_a_taskset_that_cannot_be_used_is_refused(
    tasks: list[dict[str, Any]], program: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=words):
        loaded(monkeypatch, tasks, program)


def test_what_is_reported_decides_and_no_text_is_read() -> None:
    reported = [{"reward": 1.0}, {"style": 0.4, "right": 0.5}, {}]
    with Grader(1.0) as grader:
        judged = grader.judge(["#### 1"] * 3, ["k@h"] * 3, ["reported"] * 3, "strict", reported)
    assert [each.verdict for each in judged] == ["right", "wrong", "missing"]


def test_the_tasks_of_a_taskset_want_its_agent() -> None:
    experiment = {"train": "verifiers", "evaluate": ["verifiers"], "tasks": ["verifiers"]}
    given = {"experiment": experiment, "data": {"verifiers": {"taskset": "sums", "parameters": {"number": 9}}}}
    with pytest.raises(
        UserError, match=r"set rollout.agent to \{name: verifiers, taskset: sums\}, with the parameters"
    ):
        parse(given)
    agent = {"name": "verifiers", "taskset": "sums", "parameters": {"number": 9}}
    require_fitting_tasks(parse({**given, "rollout": {"agent": agent}}))
