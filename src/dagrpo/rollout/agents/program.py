"""program: attempts made by any program that accepts an OpenAI server's address.

One process makes one attempt, or one process makes all. The program gets the row without its ground truth. The gateway
records its requests to the policy; our verifiers or the program itself give the reward. It runs with the rights of this
process: isolation is for the program's owner.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dagrpo.core.section import Texts
from dagrpo.core.user_code import NamedCode
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits

if TYPE_CHECKING:
    from dagrpo.rollout.gateway.server import Access, Gateway
    from dagrpo.rollout.programs.service import Service
    from dagrpo.rollout.session import Session
    from dagrpo.rollout.trajectory import Problem, Trajectory

MOST_OUTPUT = 16 << 20  # bytes that a program may write for one attempt
TAIL = 1 << 16  # of which the last line is looked for here


class Config(Limits):
    """A program of your own that asks the policy through OpenAI's protocol."""

    command: Annotated[list[str], Field(min_length=1, max_length=1000)] = Field(
        ["python", "agent.py"], description="The program and its arguments, started where dagrpo was."
    )
    serve: bool = Field(
        False,
        description="One program for all attempts, a JSON line each way per attempt; else one process per attempt.",
    )
    keep_variables: Texts = Field(
        [], description="Environment variables that the program gets although they look like secrets."
    )


class ProgramAgent:
    """Agent that has a program make each attempt."""

    def __init__(self, config: Config, context: AgentContext, gateway: Gateway, service: Service | None) -> None:
        self._config = config
        self._gateway = gateway
        self._service = service
        self._log = context.folder / "program.log"
        self._wants_report = context.wants_report

    async def __call__(self, problem: Problem, sample_index: int, session: Session) -> Trajectory:
        """Make one attempt, ended by the program or by limits.seconds."""
        from dagrpo.rollout.programs.attempt import attempt, told

        problem_told = told(problem, sample_index)

        async def run(access: Access) -> Mapping[str, float]:
            return await (self._served(problem_told, access) if self._service else self._started(problem_told, access))

        return await attempt(
            self._gateway,
            session,
            sample_index,
            run,
            seconds=self._config.seconds,
            wants_report=self._wants_report,
        )

    async def _served(self, problem: Mapping[str, Any], access: Access) -> Mapping[str, float]:
        """Return the rewards that the shared program reports. Raises ProgramFailure."""
        from dagrpo.rollout.programs.report import reported_rewards

        assert self._service is not None
        body = {"problem": problem, "base_url": access.base_url, "api_key": access.key}
        return reported_rewards(await self._service.request(access.identifier, body))

    async def _started(self, problem: Mapping[str, Any], access: Access) -> Mapping[str, float]:
        """Return the rewards that a process for this attempt alone reports. Raises ProgramFailure."""
        from dagrpo.rollout.programs.process import read_output, running
        from dagrpo.rollout.programs.report import ProgramFailure, report_in
        from dagrpo.utils.child_variables import access_variables, without_secrets

        with tempfile.TemporaryDirectory(prefix="dagrpo-") as folder:
            file = Path(folder) / "problem.json"
            file.write_text(json.dumps(problem) + "\n")
            variables = without_secrets(self._config.keep_variables) | access_variables(access.base_url, access.key)
            variables["DAGRPO_PROBLEM"] = str(file)
            async with running(self._config.command, variables=variables, input_file=file, log=self._log) as program:
                output, code = await read_output(program, MOST_OUTPUT, TAIL)
        if output is None:
            raise ProgramFailure(f"The program has written more than {MOST_OUTPUT >> 20} MiB.")
        if code:
            raise ProgramFailure(f"The program ended with code {code}: {program.last_complaint()}")
        return report_in(output)


@asynccontextmanager
async def open_program(config: Config, context: AgentContext) -> AsyncIterator[Agent]:
    """Open the agent and the gateway for its program. Raises UserError if there is no such program or script."""
    from dagrpo.rollout.gateway.server import open_gateway
    from dagrpo.rollout.programs.service import service
    from dagrpo.utils.child_variables import without_secrets

    _check(config)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway())
        served = None
        if config.serve:
            variables = without_secrets(config.keep_variables)
            served = await stack.enter_async_context(service(config.command, variables, context.folder))
        yield ProgramAgent(config, context, gateway, served)


def _check(config: Config) -> None:
    from dagrpo.rollout.programs.command import require_command

    require_command(config.command)


AGENT = AgentKind(
    config=Config,
    open=open_program,
    check=_check,
    code=lambda config: NamedCode.of_command(config.command),
    takes_pictures=False,
)
