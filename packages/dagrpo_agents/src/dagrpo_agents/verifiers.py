"""verifiers: tasks, tools and rewards of a taskset of the package `verifiers`.

Its agents make the attempts unchanged. The package lives in a separate environment, created when first needed. A row's ground
truth is the key of its task; the taskset gives the reward, which the reward component `reported` weights.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.section import Unchecked
from dagrpo.core.user_code import NamedCode
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo_agents.verifiers_package import ENVIRONMENT, LOCK

if TYPE_CHECKING:
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session
    from dagrpo_agents.gateway.server import Access, Gateway
    from dagrpo_agents.programs.service import Service


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
    from dagrpo_agents.verifiers_package import digest, worker_command, worker_variables

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
