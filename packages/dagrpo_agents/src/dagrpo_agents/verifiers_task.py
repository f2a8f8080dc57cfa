"""verifiers: a taskset of the package `verifiers`, one row per task.

A row's ground truth is the task's key and the hash of its data, by which the agent finds the task again and checks that it
is unchanged. The taskset reports an attempt's reward (verifier `reported`, reward component `reported`).
"""

import hashlib
import json
import subprocess
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.experiment import Experiment
from dagrpo.core.section import Count, Section, Unchecked
from dagrpo.core.types import Row
from dagrpo.data.task import Task, TaskRows

if TYPE_CHECKING:
    from dagrpo.data.config import Data


class Config(Section):
    """The tasks of a taskset of `verifiers`."""

    taskset: str = Field("", description="Module of the taskset, as rollout.agent.taskset names it.")
    parameters: Unchecked = Field({}, description="Parameters of the taskset, as in rollout.agent.parameters.")
    train: Count = Field(64, description="Tasks to train on, after those that are held out.")
    test: Count = Field(16, description="Tasks that are held out: the taskset's first.")

    def check(self, experiment: Experiment, rollout: Any) -> None:
        """Raise UserError unless the agent of this taskset makes the attempts: no other one can."""
        agent = rollout.agent.model_dump()
        is_its_own = (agent["name"], agent.get("taskset"), agent.get("parameters")) == (
            "verifiers",
            self.taskset,
            self.parameters,
        )
        if "verifiers" in experiment.tasks and not is_its_own:
            raise UserError(
                "experiment.tasks names verifiers, whose attempts the package makes itself: set rollout.agent to {name: verifiers, "
                f"taskset: {self.taskset or '...'}}}, with the parameters of data.verifiers."
            )


SECONDS = 600  # to make the environment and to list the tasks


def load(params: "Data") -> TaskRows:
    """Return the first tasks of the taskset; data.verifiers.test of them are held out.

    Raises UserError if the taskset cannot be listed, or has too few tasks.
    """
    config = params.section(Config)
    listed = _listed(config)
    if len(listed) < config.test + config.train:
        raise UserError(
            f"the taskset {config.taskset} has {len(listed)} tasks, and data.verifiers asks for {config.test + config.train} "
            "(train and test): lower one of them."
        )
    chosen = {"test": listed[: config.test], "train": listed[config.test : config.test + config.train]}
    hashes = "".join(task["hash"] for task in listed)
    return TaskRows(
        splits={
            split: [_row(config, split, index, task) for index, task in enumerate(tasks)]
            for split, tasks in chosen.items()
        },
        source=f"verifiers taskset {config.taskset}",
        origin="generator",
        revision=None,
        files={config.taskset: hashlib.sha256(hashes.encode()).hexdigest()},
        expected={split: len(tasks) for split, tasks in chosen.items()},
        read={split: len(tasks) for split, tasks in chosen.items()},
    )


def _listed(config: Config) -> list[dict[str, Any]]:
    from dagrpo_agents.verifiers import worker_command, worker_variables

    if not config.taskset:
        raise UserError("data.verifiers.taskset is empty: name the module of a taskset of the package verifiers.")
    command = worker_command(config.taskset, config.parameters, list=config.test + config.train)
    try:
        done = subprocess.run(
            command, env=worker_variables(), capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the taskset {config.taskset} was not listed within {SECONDS} s: give it fewer tasks."
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"the taskset {config.taskset} cannot be loaded ({last}): put its folder on PYTHONPATH.")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _row(config: Config, split: str, index: int, task: dict[str, Any]) -> Row:
    prompt = tuple(task["prompt"])
    if not prompt or not all(isinstance(message["content"], str) and message["content"].strip() for message in prompt):
        raise UserError(f"task {task['key']} of {config.taskset} has no prompt of text: choose another taskset.")
    return Row(
        task="verifiers",
        split=split,
        index=index,
        prompt=prompt,
        question=prompt[-1]["content"],
        answer="",
        ground_truth=f"{task['key']}@{task['hash']}",
        data_source=f"verifiers:{config.taskset}",
        verifier="reported",
    )


TASK = Task(name="verifiers", load=load, verifier="reported")
