"""Agent of Megatron-LM whose prompts and rewards are ours.

Megatron-LM's Python imports it, in an environment without this package: only the standard library and Megatron-LM are there.
"""

import asyncio
import json
import math
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

try:
    from megatron.rl.agent.reward_only_agent import RewardOnlyAgent
    from megatron.rl.inference import LLMChatMessage
except ImportError:  # in our own environment, where the file is only named
    RewardOnlyAgent = LLMChatMessage = object
REPLIES: list[dict[str, float]] = []  # of the step that is being sampled
DRAWN: list[tuple[str, int]] = []  # of each of these, its task and the number of its prompt
TASKS: list[str] = []  # of a mixture


class RewardProcess:
    """Process of dagrpo that grades responses, started by the first question. Several threads may ask."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return its reply to one line of JSON. Raises RuntimeError with its reason if it cannot grade."""
        line = json.dumps(question)
        with self._lock:
            if self._process is None:
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            reply: dict[str, Any] = json.loads(
                self._process.stdout.readline() or '{"error": "the process that grades has ended"}'
            )
        if "error" in reply:
            raise RuntimeError(f"dagrpo cannot grade: {reply['error']}")
        return reply


class Agent(RewardOnlyAgent):  # type: ignore[misc]
    """Agent that draws the prompts of a job in its order, and asks a process of dagrpo for each reward."""

    env_id: str | None = "dagrpo"
    _job: Any = PrivateAttr()
    _process: Any = PrivateAttr()
    _rows: Any = PrivateAttr()
    _drawn: int = PrivateAttr(0)

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = json.loads(Path(job).read_text())
        self._process = RewardProcess(self._job["grading"])
        with Path(self._job["prompts"]).open() as lines:
            self._rows = {row["index"]: row for row in map(json.loads, lines)}
        TASKS[:] = sorted({row["task"] for row in self._rows.values() if "task" in row})

    async def get_prompt(self, validation: bool) -> tuple[list[Any], dict[str, Any]]:
        """Return the messages of the next prompt, and its index."""
        order = self._job["order"]
        index, number = order[(self._job["drawn"] + self._drawn) % len(order)], self._drawn
        self._drawn += 1
        messages = [LLMChatMessage(**message) for message in self._rows[index]["messages"]]
        return messages, {"index": index, "number": number, "problem_id": str(index)}

    async def get_trajectory_reward(
        self, responses: list[Any], conversation: list[Any], golden: dict[str, Any]
    ) -> float:
        """Return the reward of the tokens of the one response."""
        response = responses[-1]
        tokens, prompt = response.token_ids, response.prompt_length
        question = {"index": golden["index"], "prompt": tokens[:prompt], "response": tokens[prompt:]}
        reply = await asyncio.get_running_loop().run_in_executor(None, self._process.ask, question)
        ends = {"length": len(tokens) - prompt, "truncated": response.finish_reason == "length"}
        REPLIES.append({**reply, **ends})
        DRAWN.append((self._rows[golden["index"]].get("task", ""), golden["number"]))
        return float(reply["reward"])

    async def _rollout_from_episode(self, request: Any, episode: Any, golden: Any) -> Any:
        """Return the rollout, which Megatron-LM lets end without an end token at this limit alone."""
        rollout = await super()._rollout_from_episode(request, episode, golden)
        rollout.generation_cap = self._job["max_new_tokens"]
        return rollout


def taken() -> dict[str, float]:
    """Return the means over the replies of a step, also of each task of a mixture, and the greatest length; the next begins with none."""
    replies, drawn = [*REPLIES], [*DRAWN]
    REPLIES.clear()
    DRAWN.clear()
    if not replies:
        return {}
    means = {name: _mean(each[name] for each in replies) for name in replies[0]}
    of_tasks = {name: value for task in TASKS for name, value in _of_task(task, replies, drawn)}
    return {**means, "length_max": max(each["length"] for each in replies), **of_tasks}


def _of_task(
    task: str, replies: Sequence[Mapping[str, float]], drawn: Sequence[tuple[str, int]]
) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a task, NaN where a step has none of its prompts."""
    groups: dict[int, list[Mapping[str, float]]] = {}
    for reply, (of, number) in zip(replies, drawn, strict=True):
        if of == task:
            groups.setdefault(number, []).append(reply)
    own = [reply for group in groups.values() for reply in group]
    for name, theirs in (("reward_mean", "reward"), ("correct_fraction", "acc"), ("tokens_mean", "length")):
        yield f"task/{task}/{name}", _mean(each[theirs] for each in own)
    equal = [float(len({each["reward"] for each in group}) == 1) for group in groups.values()]
    yield f"task/{task}/no_signal_fraction", _mean(equal)
    yield f"task/{task}/groups", float(len(groups))


def _mean(values: Iterable[float]) -> float:
    each = [*values]
    return sum(each) / len(each) if each else math.nan
