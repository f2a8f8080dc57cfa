"""Run tasks of a `verifiers` taskset, in that package's own environment.

A program of agents/verifiers.py:

    python -P verifiers_worker.py '{"taskset": "my_taskset", "harness": "null", "max_turns": 8}'

A JSON line per attempt on each side, as service.py has it. It imports nothing of dagrpo, which is not installed here.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found]
from verifiers.v1.mcp import serve_shared  # type: ignore[import-not-found]
from verifiers.v1.utils.loaders import harness_config_type, taskset_config_type  # type: ignore[import-not-found]


async def main(config: dict[str, Any]) -> None:
    """Answer until there are no more lines. Tools that all tasks share are started once."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    identity = config["taskset"]
    taskset = vf.load_taskset(taskset_config_type(identity)(id=identity, **config.get("parameters", {})))
    if "list" in config:
        list_tasks(itertools.islice(taskset, config["list"]), output)
        return
    tasks = {task.key: task for task in taskset}
    running: dict[str, asyncio.Task[None]] = {}
    async with serve_shared(taskset.toolsets(taskset.config), harness_is_local=True) as shared:
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            if (given_up := running.pop(request.get("cancel", ""), None)) is not None:
                given_up.cancel()
            elif "id" in request:
                running[request["id"]] = asyncio.create_task(answer(request, config, tasks, shared, output))


def list_tasks(taskset: Any, output: Any) -> None:
    """Write a line per task: its key, the hash of its data, and the conversation that it begins with."""
    for task in taskset:
        prompt = task.data.prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _messages(prompt)
        if system := getattr(task.data, "system_prompt", None):
            messages = [{"role": "system", "content": system}, *messages]
        output.write(json.dumps({"key": task.key, "hash": task.hash, "prompt": messages}) + "\n")


def _messages(prompt: Any) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in prompt or ()]


async def answer(request: dict[str, Any], config: dict[str, Any], tasks: Any, shared: Any, output: Any) -> None:
    """Make one attempt, and write its reward."""
    try:
        report = await attempt(request, config, tasks, shared)
    except Exception as error:  # noqa: BLE001  the border to the taskset's code: whatever it raises is the answer
        report = {"error": f"{type(error).__name__}: {error}"}
    output.write(json.dumps({"id": request["id"], **report}) + "\n")


async def attempt(request: dict[str, Any], config: dict[str, Any], tasks: Any, shared: Any) -> dict[str, Any]:
    """Return the rewards of one attempt by name, and their weighted sum."""
    task = tasks.get(request["problem"]["key"])
    if task is None:
        return {"error": f"the taskset has no task {request['problem']['key']}"}
    if task.hash != request["problem"]["hash"]:
        return {"error": f"task {task.key} of the taskset is another one than when the data was prepared"}
    with key_in_environment(request) as variable:
        agent = vf.make_agent(
            vf.AgentConfig(
                model=request["problem"]["model"],
                client=vf.EvalClientConfig(base_url=request["base_url"], api_key_var=variable),
                harness=harness_config_type(config["harness"])(id=config["harness"]),
                runtime=vf.SubprocessConfig(),  # its default is a sandbox of a paid service
                max_turns=config["max_turns"],
            )
        )
        trace = await agent.run(task, tools=shared)
    if trace.errors:
        return {"error": "; ".join(str(error)[:300] for error in trace.errors)}
    rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": trace.reward, "rewards": rewards}


@contextmanager
def key_in_environment(request: dict[str, Any]) -> Iterator[str]:
    """Set, and yield, the variable in which `verifiers` looks for the session's key."""
    variable = f"DAGRPO_SESSION_{abs(hash(request['id']))}"
    os.environ[variable] = request["api_key"]
    try:
        yield variable
    finally:
        del os.environ[variable]


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
