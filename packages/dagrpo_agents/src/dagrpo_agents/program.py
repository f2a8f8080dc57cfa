"""program: attempts made by any program that accepts an OpenAI server's address.

One process makes one attempt, or one process makes all. The program gets the row without its ground truth. The gateway
records its requests to the policy; our verifiers or the program itself give the reward. It runs with the rights of this
process: isolation is for the program's owner.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.section import Texts
from dagrpo.core.user_code import NamedCode
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits

if TYPE_CHECKING:
    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session
    from dagrpo_agents.gateway.server import Access, Gateway
    from dagrpo_agents.programs.service import Service

MOST_OUTPUT = 16 << 20  # bytes that a program may write for one attempt
TAIL = 1 << 16  # of which the last line is looked for here
KEY = "rollout.agent.command"
LONGEST = 80  # characters of a word that are shown
INTERPRETER = re.compile(r"(python|pypy)[\d.]*|(ba|da|z)?sh|node|perl|ruby|Rscript|julia")
CODE = ("-c", "-m", "-e")  # what follows is code, or a module's name
PATH = re.compile(r"[^\s=]*/[^\s=]*")
SCRIPT = re.compile(r"[^\s=]+\.(py|sh)")


class Config(Limits):
    """A program of your own that asks the policy through OpenAI's protocol."""

    command: Annotated[list[str], Field(min_length=1, max_length=1000)] = Field(
        ["python", "agent.py"], description="Program and arguments, started in the working directory of dagrpo."
    )
    serve: bool = Field(
        False,
        description="true: one process for all attempts, with a JSON line in and out per attempt; false: one process per attempt.",
    )
    keep_variables: Texts = Field(
        [],
        description="Environment variables that the program needs, besides PATH, HOME and others that every program does (docs/agents.md).",
    )


class ProgramAgent:
    """Agent that has a program make each attempt."""

    def __init__(self, config: Config, context: AgentContext, gateway: Gateway, service: Service | None) -> None:
        self._config = config
        self._gateway = gateway
        self._service = service
        self._log = context.folder / "program.log"
        self._wants_report = context.wants_report

    async def __call__(self, prompt: Prompt, sample_index: int, session: Session) -> Trajectory:
        """Make one attempt, ended by the program or by limits.seconds."""
        from dagrpo_agents.programs.attempt import attempt, task_message

        message = task_message(prompt, sample_index)

        async def run(access: Access) -> Mapping[str, float]:
            return await (self._served(message, access) if self._service else self._started(message, access))

        return await attempt(
            self._gateway,
            session,
            sample_index,
            run,
            seconds=self._config.seconds,
            wants_report=self._wants_report,
        )

    async def _served(self, message: Mapping[str, Any], access: Access) -> Mapping[str, float]:
        from dagrpo_agents.programs.attempt import reported_rewards

        assert self._service is not None
        body = {"problem": message, "base_url": access.base_url, "api_key": access.key}
        return reported_rewards(await self._service.request(access.identifier, body))

    async def _started(self, message: Mapping[str, Any], access: Access) -> Mapping[str, float]:
        from dagrpo.utils.child_variables import access_variables, passed_on
        from dagrpo_agents.programs.attempt import ProgramFailure, report_in
        from dagrpo_agents.programs.process import read_output, running

        with tempfile.TemporaryDirectory(prefix="dagrpo-") as folder:
            file = Path(folder) / "problem.json"
            file.write_text(json.dumps(message) + "\n")
            variables = passed_on(self._config.keep_variables) | access_variables(access.base_url, access.key)
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
    from dagrpo.utils.child_variables import passed_on
    from dagrpo_agents.gateway.server import open_gateway
    from dagrpo_agents.programs.service import service

    require_command(config.command)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway())
        served = None
        if config.serve:
            variables = passed_on(config.keep_variables)
            served = await stack.enter_async_context(service(config.command, variables, context.folder))
        yield ProgramAgent(config, context, gateway, served)


AGENT = AgentKind(
    config=Config,
    open=open_program,
    check=lambda config: require_command(config.command),
    code=lambda config: NamedCode.of_command(config.command),
    takes_pictures=False,
)


def require_command(command: Sequence[str]) -> None:
    """Raise UserError if there is no such program, or it is an interpreter and there is no such script.

    Arguments of other programs are not checked: a path may be one in a container, or of a file to be written.
    """
    if shutil.which(command[0]) is None:
        raise UserError(
            f"{KEY}: there is no program `{one_line(command[0], LONGEST)}` that can be started: install it, or give its path."
        )
    script = _script(command)
    if script is not None and not os.path.exists(script):
        raise UserError(
            f"{KEY}: there is no file `{one_line(script, LONGEST)}` for {one_line(command[0], LONGEST)} to run: give a path that "
            "counts from the folder in which dagrpo is started."
        )


def _script(command: Sequence[str]) -> str | None:
    """Return the script that an interpreter is to run; None for other programs, or if no word is clearly a path."""
    if not INTERPRETER.fullmatch(os.path.basename(command[0])):
        return None
    for before, argument in pairwise(command):
        if argument in CODE:
            return None
        # What follows an option may be its value, such as a module's name: node -r dotenv/config.
        is_path = SCRIPT.fullmatch(argument) or (PATH.fullmatch(argument) and not before.startswith("-"))
        if is_path and not argument.startswith("-") and "://" not in argument:
            return argument
    return None
