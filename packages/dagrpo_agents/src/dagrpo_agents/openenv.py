"""openenv: environments on a server, by OpenEnv's protocol (JSON over a WebSocket).

Each attempt has its own connection. The policy calls the environment's own tools, or else each of its answers is one action.
The rewards of all steps are added up. The protocol is implemented here because the package `openenv` has sixty dependencies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.rewards.reporting import as_reward
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.tools import CallContext, InfrastructureFailure, ToolFailure, ToolFunction, as_text
from dagrpo_agents.environment import ENVIRONMENT_REWARD, attempt_in
from dagrpo_answers.own_text import without_thoughts

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from dagrpo.core.trajectory import Prompt, Trajectory
    from dagrpo.rollout.session import Session

CONNECT_SECONDS = 10.0
LONGEST_MESSAGE = 4 << 20  # bytes
BUSY = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")  # errors in which the policy has no part


class Config(Limits):
    """An environment behind OpenEnv's protocol."""

    address: str = Field("http://127.0.0.1:8000", description="Address of the environment's server.")
    action_field: str = Field(
        "",
        description='Field of the action that takes each answer of the policy; "": the policy calls the environment\'s tools.',
    )
    observation_field: str = Field(
        "", description='Field of an observation to show to the policy; "": all of it, as JSON.'
    )


class RemoteEpisode:
    """Episode over a separate connection."""

    def __init__(self, config: Config, functions: Sequence[ToolFunction] = ()) -> None:
        self.functions = functions
        self.over = False
        self._config = config
        self._reward = 0.0
        self._connection: ClientConnection | None = None
        self._one_at_a_time = asyncio.Lock()
        self._exchanges: set[asyncio.Task[Mapping[str, Any]]] = set()

    async def opening(self, prompt: Prompt) -> str | None:
        """Connect and reset. All attempts at a prompt get the same seed."""
        observation = await self.exchange("reset", {"seed": prompt.row.index})
        return None if self.functions else self._text(observation)

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the result of the environment's tool. Raises ToolFailure if the environment reports an error."""
        action = {"type": "call_tool", "tool_name": function, "arguments": dict(arguments)}
        observation = await self.exchange("step", action)
        if error := observation.get("error"):
            raise ToolFailure(str(error.get("message", error)) if isinstance(error, dict) else str(error))
        return _text_of(observation.get("result"))

    async def reply(self, answer: str) -> str | None:
        """Return the environment's observation after the policy's action. With tools, an answer without a call is the last."""
        if self.functions or self.over:
            return None
        try:
            observation = await self.exchange("step", {self._config.action_field: without_thoughts(answer)})
        except ToolFailure as failure:
            return str(failure)
        return self._text(observation)

    async def forget(self, trajectory: str) -> None:
        """Do nothing: the connection is closed with the attempt."""

    async def rewards(self) -> Mapping[str, float]:
        """Return the sum of all steps' rewards."""
        return {ENVIRONMENT_REWARD: self._reward}

    async def tools(self) -> list[ToolFunction]:
        """Return the environment's tools. Raises InfrastructureFailure if its reply is not a list of tools."""
        observation = await self.exchange("step", {"type": "list_tools"})
        try:
            return [_function(tool) for tool in observation.get("tools") or ()]
        except (TypeError, KeyError, AttributeError) as error:
            raise InfrastructureFailure(f"{self._config.address}: {type(error).__name__}: {error}") from error

    async def exchange(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return the observation; the reply is read even if the caller is cancelled.

        Raises ToolFailure if the server refuses the action.
        """
        task = asyncio.create_task(self._exchange(kind, data))
        self._exchanges.add(task)
        task.add_done_callback(self._exchanges.discard)
        return await asyncio.shield(task)

    async def _exchange(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        from dagrpo.core.untrusted_json import read_json

        async with self._one_at_a_time:
            try:
                connection = self._connection = self._connection or await self._connected()
                with suppress(ConnectionClosed):  # a server that is full says so, and closes at once
                    await connection.send(json.dumps({"type": kind, "data": data}))
                return self._read(read_json(await connection.recv()))
            except (OSError, WebSocketException, ValueError, TypeError, KeyError, AttributeError) as error:
                # The border to a server that may say anything.
                raise InfrastructureFailure(f"{self._config.address}: {type(error).__name__}: {error}") from error

    async def _connected(self) -> ClientConnection:
        from websockets.asyncio.client import connect

        address = "ws" + self._config.address.rstrip("/").removeprefix("http") + "/ws"
        return await connect(address, open_timeout=CONNECT_SECONDS, max_size=LONGEST_MESSAGE, proxy=None)

    def _read(self, reply: Any) -> Mapping[str, Any]:
        data = reply["data"]
        if reply["type"] == "error":
            failure = InfrastructureFailure if data.get("code") in BUSY else ToolFailure
            raise failure(f"{self._config.address}: {data.get('message')}")
        self._reward += as_reward(data.get("reward") or 0.0)
        self.over = bool(data.get("done"))
        observation: Mapping[str, Any] = dict(data["observation"])
        return observation

    def _text(self, observation: Mapping[str, Any]) -> str:
        field = self._config.observation_field
        return _text_of(observation.get(field) if field else observation)

    async def close(self) -> None:
        """Close the connection, with which the server ends the episode."""
        for task in self._exchanges:
            task.cancel()
        if self._connection is not None:
            await self._connection.close()


def _text_of(value: Any) -> str:
    """Return text unchanged, the texts of an MCP result joined, and anything else as JSON."""
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        texts = [
            part["text"] for part in value["content"] if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        if texts:
            return "\n".join(texts)
    return as_text(value)


def _function(tool: Mapping[str, Any]) -> ToolFunction:
    schema = tool.get("input_schema") or tool.get("inputSchema") or {}
    return ToolFunction(
        name=str(tool["name"]),
        description=str(tool.get("description") or ""),
        parameters={"type": "object", "properties": {}, **schema},
    )


class OpenEnvAgent:
    """Agent that plays each attempt over a separate connection."""

    def __init__(self, config: Config, functions: Sequence[ToolFunction], *, fresh: bool) -> None:
        self._config = config
        self._fresh = fresh
        self._functions = functions

    async def __call__(self, prompt: Prompt, sample_index: int, session: Session) -> Trajectory:
        """Make one attempt."""
        episode = RemoteEpisode(self._config, self._functions)
        try:
            return await attempt_in(episode, self._config, sample_index, session, fresh=self._fresh)
        finally:
            await episode.close()


@asynccontextmanager
async def open_openenv(config: Config, context: AgentContext) -> AsyncIterator[Agent]:
    """Open the agent with the environment's tools. Raises UserError if its server does not answer, or offers none."""
    functions: Sequence[ToolFunction] = ()
    if not config.action_field:
        probe = RemoteEpisode(config)
        try:
            functions = await probe.tools()
        except (InfrastructureFailure, ToolFailure) as failure:
            own_actions = isinstance(failure, ToolFailure)  # it answers, and takes no such action
            remedy = "; where its actions are its own, name their field in rollout.agent.action_field"
            raise UserError(
                f"rollout.agent.address: the environment's tools cannot be listed ({failure}){remedy if own_actions else ''}."
            ) from None
        finally:
            await probe.close()
        if not functions:
            raise UserError(
                f"{config.address} offers no tools: name the field of its action in rollout.agent.action_field."
            )
    yield OpenEnvAgent(config, functions, fresh=context.fresh)


AGENT = AgentKind(config=Config, open=open_openenv)
