"""The package verifiers, unmodified in an environment of its own: tasks of a taskset as rows, and attempts at them."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_agents.tests.scripted_policy import ScriptedPolicy, session_with
from packages.dagrpo_agents.tests.test_environment import context_in

from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.data.config import Data
from dagrpo.data.task import TaskRows, get_task
from dagrpo.pipeline.validation import require_fitting_tasks
from dagrpo.rewards.grading import Grader
from dagrpo_agents import verifiers
from dagrpo_agents.verifiers import Config, open_verifiers, python_of, worker_command

ROOT = Path(__file__).parents[3]
TASKSETS = Path(__file__).with_name("tasksets")
made = pytest.mark.skipif(
    not (ROOT / ".venv-verifiers" / "dagrpo.lock.sha256").exists(), reason="`make verifiers` makes its environment"
)


def config() -> Config:
    return Config(
        name="verifiers",
        taskset="sums",
        seconds=300.0,
        max_turns=4,
        lock=str(ROOT / "requirements/verifiers.lock"),
        environment=str(ROOT / ".venv-verifiers"),
    )


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What the worker lists."""
    monkeypatch.setenv("PYTHONPATH", str(TASKSETS))
    given = config()
    command = worker_command("sums", {}, lock=given.lock, environment=given.environment, list=9)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.nightly
@made
def test_a_taskset_is_attempted_and_its_rewards_are_reported(tasks: list[dict[str, object]], tmp_path: Path) -> None:
    assert [task["prompt"] for task in tasks] == [[{"role": "user", "content": f"{number}*7="}] for number in (2, 3)]
    assert len({task["key"] for task in tasks} | {task["hash"] for task in tasks}) == 2
    policies = [ScriptedPolicy('@multiply{"a": 2, "b": 7}', "14"), ScriptedPolicy("22")]

    async def run() -> list[Trajectory]:
        async with open_verifiers(config(), context_in(tmp_path)) as agent:
            sessions = [
                session_with(policy, ground_truth=f"{task['key']}@{task['hash']}")
                for policy, task in zip(policies, tasks, strict=True)
            ]
            return await asyncio.gather(*(agent(session.prompt, 0, session) for session in sessions))

    right, wrong = asyncio.run(run())
    assert (right.fault, wrong.fault) == ("", "")
    assert right.reported == {"correct": 1.0, "reward": 2.0}
    assert wrong.reported == {"correct": 0.0, "reward": 0.0}
    assert [(call.name, call.status, call.result) for call in right.calls] == [("multiply", "ok", "14")]
    (sample,) = right.samples
    assert tuple(sample.completion_ids) == (
        *policies[0].completions[0].token_ids,
        *policies[0].completions[1].token_ids,
    )
    assert json.loads((tmp_path / "verifiers.json").read_text())["lock_sha256"]


def test_an_environment_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        python_of(tmp_path / "venv", tmp_path / "no.lock")
    lock = tmp_path / "impossible.lock"
    lock.write_text("./no-such-folder\n")
    with pytest.raises(UserError, match="cannot be made"):
        python_of(tmp_path / "venv", lock)


def test_an_environment_is_made_once_for_each_lock(tmp_path: Path) -> None:
    lock = tmp_path / "empty.lock"
    lock.write_text("")
    python = python_of(tmp_path / "venv", lock)
    assert python.exists()
    before = python.lstat().st_mtime_ns
    assert python_of(tmp_path / "venv", lock).lstat().st_mtime_ns == before
    lock.write_text("# changed\n")
    assert python_of(tmp_path / "venv", lock).lstat().st_mtime_ns > before


def test_a_taskset_is_to_be_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_verifiers(Config(name="verifiers"), context_in(tmp_path)):
            pass

    with pytest.raises(UserError, match="taskset"):
        asyncio.run(run())


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
