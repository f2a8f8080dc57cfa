"""The package verifiers, unmodified and in an environment of its own, makes attempts at the tasks of a taskset."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from packages.dagrpo_agents.tests.scripted_policy import ScriptedPolicy, session_with
from packages.dagrpo_agents.tests.test_environment import context_in

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
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
