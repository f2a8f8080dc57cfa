"""verifiers: tasks, tools and rewards of a taskset of the package `verifiers`.

Its agents make the attempts unchanged. The package lives in a separate environment, created when first needed. A row's ground
truth is the key of its task; the taskset gives the reward, which the reward component `reported` weights.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.section import Unchecked
from dagrpo.core.user_code import NamedCode
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.utils.child_variables import passed_on
from dagrpo.utils.console import say

if TYPE_CHECKING:
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session
    from dagrpo_agents.gateway.server import Access, Gateway
    from dagrpo_agents.programs.service import Service


LOCK = "requirements/verifiers.lock"
ENVIRONMENT = ".venv-verifiers"
STAMP = "dagrpo.lock.sha256"  # in the environment's folder: what it was made from
# Run, never imported: its packages are in the other environment.
WORKER = Path(__file__).with_name("verifiers_worker.py")


def worker_command(
    taskset: str,
    parameters: Mapping[str, Any],
    *,
    lock: str = LOCK,
    environment: str = ENVIRONMENT,
    **options: Any,
) -> list[str]:
    """Return the command that lists the first `list` tasks of the taskset, or runs tasks with `harness` and `max_turns`.

    Raises UserError if its environment cannot be created.
    """
    settings = {"taskset": taskset, "parameters": parameters, **options}
    python = python_of(Path(environment), Path(lock))
    return [str(python.absolute()), "-P", str(WORKER), json.dumps(settings)]


def worker_variables() -> dict[str, str]:
    """Return the environment variables of the worker. The package prepares its own programs with uv."""
    variables = passed_on()
    return variables | {"PATH": f"{variables.get('PATH', os.defpath)}{os.pathsep}{sysconfig.get_path('scripts')}"}


def python_of(folder: Path, lock: Path) -> Path:
    """Return the environment's interpreter. A changed lock file recreates it. Raises UserError if it cannot be created."""
    if not lock.exists():
        raise UserError(f"{lock} is missing: start dagrpo in the project's folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)  # another run may be making it
        stamp = folder / STAMP
        if not stamp.exists() or stamp.read_text() != digest(lock):
            _make(folder, lock)
            stamp.write_text(digest(lock))
    return folder / "bin" / "python"


def digest(lock: Path) -> str:
    """Return the digest of the lock file, which identifies an environment."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def uv() -> str:
    """Return the path of uv, which is installed with dagrpo."""
    path = shutil.which("uv", path=sysconfig.get_path("scripts")) or shutil.which("uv")
    if path is None:
        raise UserError("uv is needed to make an environment: pip install uv.")
    return path


def _make(folder: Path, lock: Path) -> None:
    say(f"Making the environment {folder} from {lock}.")
    commands = [
        [uv(), "venv", "--quiet", "--clear", str(folder)],
        [
            *(uv(), "pip", "sync", "--quiet", "--compile-bytecode", "--require-hashes"),
            *("--python", str(folder / "bin" / "python"), str(lock)),
        ],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"{folder} cannot be made from {lock}: {done.stderr.strip()[-500:]}")


class Config(Limits):
    """A taskset of the package `verifiers` (0.4)."""

    taskset: str = Field("", description="Module of the taskset, on PYTHONPATH or installed in the environment.")
    parameters: Unchecked = Field({}, description="Parameters of the taskset.")
    harness: str = Field("null", description="Agent of the package that asks the policy.")
    lock: str = Field(LOCK, description="Lock file of the environment's packages.")
    environment: str = Field(ENVIRONMENT, description="Folder of the environment, created when first needed.")


class VerifiersAgent:
    """Agent that has a worker in the other environment run a row's task."""

    def __init__(self, config: Config, gateway: Gateway, worker: Service) -> None:
        self._config = config
        self._gateway = gateway
        self._worker = worker

    async def __call__(self, prompt: Prompt, sample_index: int, session: Session) -> Trajectory:
        """Make one attempt, ended by the taskset or by limits.seconds."""
        from dagrpo_agents.programs.attempt import attempt, reported_rewards, task_message

        key, _, digest = prompt.row.ground_truth.rpartition("@")
        task = {**task_message(prompt, sample_index), "key": key, "hash": digest}

        async def run(access: Access) -> Mapping[str, float]:
            body = {"problem": task, "base_url": access.base_url, "api_key": access.key}
            return reported_rewards(await self._worker.request(access.identifier, body))

        return await attempt(self._gateway, session, sample_index, run, seconds=self._config.seconds)


@asynccontextmanager
async def open_verifiers(config: Config, context: AgentContext) -> AsyncIterator[Agent]:
    """Open the agent, the gateway and the worker. Raises UserError if the environment or the taskset is missing."""
    from dagrpo_agents.gateway.server import open_gateway
    from dagrpo_agents.programs.service import service
    from dagrpo_agents.verifiers import digest, worker_command, worker_variables

    if not config.taskset:
        raise UserError("rollout.agent.taskset is empty: name the module of a taskset of the package verifiers.")
    command = worker_command(
        config.taskset,
        config.parameters,
        lock=config.lock,
        environment=config.environment,
        harness=config.harness,
        max_turns=config.max_turns,
    )
    context.folder.mkdir(parents=True, exist_ok=True)
    made_from = {"taskset": config.taskset, "lock": config.lock, "lock_sha256": digest(Path(config.lock))}
    (context.folder / "verifiers.json").write_text(json.dumps(made_from, indent=2) + "\n")
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway())
        worker = await stack.enter_async_context(service(command, worker_variables(), context.folder))
        yield VerifiersAgent(config, gateway, worker)


AGENT = AgentKind(
    config=Config, open=open_verifiers, code=lambda config: NamedCode.at([config.taskset]), takes_pictures=False
)
