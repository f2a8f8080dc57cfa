"""OpenEnv's protocol, spoken with a server that is made up: tools, actions, rewards, and servers that break."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_agents.tests.scripted_policy import ScriptedPolicy, session_with
from packages.dagrpo_agents.tests.test_environment import context_in
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection, serve

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.tools import InfrastructureFailure
from dagrpo_agents.openenv import Config, RemoteEpisode, open_openenv

Answer = Callable[[dict[str, Any]], Any]  # what the server is sent -> what it sends back
ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


def observation(reward: float | None = None, done: bool = False, **values: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": values, "reward": reward, "done": done}}


def calculator(sent: dict[str, Any]) -> Any:
    data = sent["data"]
    if sent["type"] == "reset":
        return observation(seed=data["seed"])
    if data["type"] == "list_tools":
        return observation(tools=[ADD])
    arguments = data["arguments"]
    if "b" not in arguments:
        return observation(
            tool_name="add", result=None, error={"error_type": "invalid_args", "message": "b is missing"}
        )
    result = {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}
    return observation(0.25, arguments["a"] == 9, tool_name="add", result=result)


def hangman(sent: dict[str, Any]) -> Any:
    if sent["type"] == "reset":
        return observation(board=" ___")
    letter = sent["data"]["letter"]
    if len(letter) > 1:
        return {"type": "error", "data": {"message": "one letter", "code": "EXECUTION_ERROR"}}
    return observation(0.5, letter == "t", board=letter + "__")


def attempt(folder: Path, answer: Answer, *script: str, **values: Any) -> Trajectory:
    async def handler(connection: ServerConnection) -> None:
        async for message in connection:
            reply = answer(json.loads(message))
            if reply is None:
                return
            await connection.send(reply if isinstance(reply, str) else json.dumps(reply))

    async def run() -> Trajectory:
        async with serve(handler, "127.0.0.1", 0) as server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with open_openenv(Config(name="openenv", address=address, **values), context_in(folder)) as agent:
                session = session_with(ScriptedPolicy(*script))
                return await agent(session.prompt, 0, session)

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_its_tools_are_the_policys_and_rewards_are_added_up(tmp_path: Path) -> None:
    trajectory = attempt(tmp_path, calculator, '@add{"a": 1, "b": 2}@add{"a": 1}', '@add{"a": 2, "b": 2}', "4")
    assert [(call.status, call.result) for call in trajectory.calls] == [
        ("ok", "3"),
        ("failed", "b is missing"),
        ("ok", "4"),
    ]
    assert trajectory.reported == {"environment": 0.5}
    assert (trajectory.stop_reason, trajectory.text) == ("answered", "4")


def test_an_episode_that_is_done_ends_the_attempt(tmp_path: Path) -> None:
    trajectory = attempt(tmp_path, calculator, '@add{"a": 9, "b": 1}')
    assert (trajectory.stop_reason, trajectory.turns, trajectory.reported) == ("user_done", 1, {"environment": 0.25})


def test_each_answer_can_be_an_action(tmp_path: Path) -> None:
    values = {"action_field": "letter", "observation_field": "board"}
    trajectory = attempt(tmp_path, hangman, "c", "xyz", "<think>c or t?</think>t", **values)
    said = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert said[0] == "c__"
    assert "one letter" in said[1]
    assert trajectory.reported == {"environment": 1.0}
    assert (trajectory.stop_reason, trajectory.turns) == ("user_done", 3)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "[" * 5000,
        '"text"',
        '{"type": "observation"}',
        {"type": "error", "data": {"code": "CAPACITY_REACHED"}},
        observation(10**400),
        observation(1e39),
        json.dumps(observation(0.5)).replace("0.5", "1e999"),
    ],
    ids=["hangs up", "brackets", "no object", "no data", "full", "too many digits", "too large", "infinite"],
)
def test_a_server_that_breaks_excludes_the_attempt(tmp_path: Path, reply: Any) -> None:
    def breaks(sent: dict[str, Any]) -> Any:
        return reply if sent["type"] == "step" and sent["data"]["type"] == "call_tool" else calculator(sent)

    trajectory = attempt(tmp_path, breaks, '@add{"a": 1, "b": 2}', call_retries=0)
    assert trajectory.excluded
    assert "127.0.0.1" in trajectory.fault


def test_a_server_that_is_full_is_quoted(tmp_path: Path) -> None:
    """It says so, and closes the connection before anything is asked of it."""

    async def handler(connection: ServerConnection) -> None:
        data = {"message": "at capacity: 1/1 sessions", "code": "CAPACITY_REACHED"}
        await connection.send(json.dumps({"type": "error", "data": data}))

    class Late(RemoteEpisode):
        async def _connected(self) -> ClientConnection:
            connection = await super()._connected()
            await connection.wait_closed()
            return connection

    async def begin() -> None:
        async with serve(handler, "127.0.0.1", 0) as server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await Late(Config(name="openenv", address=address)).exchange("reset", {})

    with pytest.raises(InfrastructureFailure, match="at capacity"):
        asyncio.run(begin())


def test_a_server_that_knows_no_tools_is_refused_with_the_way_to_use_it(tmp_path: Path) -> None:
    refusal = {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR"}}
    with pytest.raises(UserError, match="name their field in rollout"):
        attempt(tmp_path, lambda sent: refusal)


@pytest.mark.parametrize("tools", [3, [3], [{}], [{"name": "add", "input_schema": 3}]], ids=str)
def test_a_server_whose_list_of_tools_is_none_is_refused(tmp_path: Path, tools: Any) -> None:
    with pytest.raises(UserError, match="the environment's tools cannot be listed"):
        attempt(tmp_path, lambda sent: observation(tools=tools))


def test_a_server_that_is_not_there_or_has_no_tools_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_openenv(Config(name="openenv", address="http://127.0.0.1:9"), context_in(tmp_path)):
            pass

    with pytest.raises(UserError, match=r"rollout\.agent\.address"):
        asyncio.run(run())
    with pytest.raises(UserError, match="action_field"):
        attempt(tmp_path, lambda sent: observation(tools=[]))
