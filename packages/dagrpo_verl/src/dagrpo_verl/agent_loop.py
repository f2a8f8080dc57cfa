"""Agent loop of verl: a process of dagrpo makes each attempt.

verl's Python executes this file, the `function_tool_path` of its agent loops, in an environment without this package: only the standard
library, Pillow and verl are there. attempt_process.py is the other end of the pipe.
"""

import asyncio
import base64
import io
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
except ImportError:  # in our own environment, where the file is only named
    AgentLoopBase, register = object, lambda name: lambda loop: loop

NAME = "dagrpo"  # of the loop: rollout.agent.default_agent_loop
COMMAND = "dagrpo_command"  # key of rollout.custom: the command of the process
LONGEST_LINE = 1 << 30  # bytes
Ask = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class AttemptProcess:
    """Process that makes attempts, many at the same time, by lines of JSON."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._numbers = itertools.count()
        self._lines: dict[int, asyncio.Queue[dict[str, Any]]] = {}

    async def make(self, attempt: Mapping[str, int], ask: Ask) -> dict[str, Any]:
        """Return a finished attempt. `ask` has the policy continue tokens. Raises RuntimeError if the attempt is to be left out."""
        await self._start()
        number = next(self._numbers)
        lines = self._lines[number] = asyncio.Queue()
        turns: set[asyncio.Task[None]] = set()
        self._send({"attempt": number, "begin": attempt})
        try:
            while "ask" in (line := await lines.get()):
                turns.add(asyncio.create_task(self._answer(line["ask"], ask)))
        finally:
            del self._lines[number]
        await asyncio.gather(*turns)
        if "error" in line:
            raise RuntimeError(f"dagrpo: {line['error']}")
        done: dict[str, Any] = line["done"]
        return done

    async def _answer(self, question: Mapping[str, Any], ask: Ask) -> None:
        try:
            answer = await ask(question)
        except Exception as error:
            self._send({"turn": question["turn"], "error": f"{type(error).__name__}: {error}"})
            raise
        self._send({"turn": question["turn"], **answer})

    async def _start(self) -> None:
        async with self._starting:
            if self._process is None:
                pipe = asyncio.subprocess.PIPE
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=pipe, stdout=pipe, limit=LONGEST_LINE
                )
                self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def _read(self, stdout: Any) -> None:
        """Hand out lines until the process ends; the next attempt starts another one."""
        try:
            async for line in stdout:
                message = json.loads(line)
                if message["attempt"] in self._lines:
                    self._lines[message["attempt"]].put_nowait(message)
        except ValueError:  # no line of JSON
            pass
        finally:
            self._process = None
            for lines in self._lines.values():
                lines.put_nowait({"error": "the process that makes the attempts has ended"})

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")


# One for all loops of a worker of verl, which makes a loop per attempt.
_PROCESSES: dict[tuple[str, ...], AttemptProcess] = {}


@register(NAME)
class DagrpoAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Agent loop: a process of dagrpo runs turns, tools, users and grading, verl's servers sample the tokens."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[Any]:
        """Return the sequences of one attempt, with its reward."""
        command = tuple(self.rollout_config.custom[COMMAND])
        process = _PROCESSES.setdefault(command, AttemptProcess(command))
        policy = _Policy(self.server_manager, sampling_params, name=f"{row['uid']}_{row['session_id']}")
        place = {"step": int(row["global_steps"]), "index": int(row["index"]), "sample": int(row["session_id"])}
        done = await process.make(place, policy.answer)
        return [policy.output(sample, done) for sample in done["samples"]]


class _Policy:
    """Policy in one attempt: what verl's servers write, and what they say about it."""

    def __init__(self, servers: Any, sampling_params: Mapping[str, Any], name: str) -> None:
        self._servers = servers
        self._sampling_params = sampling_params
        self._name = name
        self._pictures: list[Any] = []
        self._seconds = 0.0
        self._fields: dict[str, Any] = {}

    async def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return a continuation of a question's tokens, by at most as many as it says."""
        if "pictures" in question:
            self._pictures = [_picture(each) for each in question["pictures"]]
        started = time.perf_counter()
        output = await self._servers.generate(
            request_id=self._name,
            prompt_ids=question["prompt"],
            sampling_params={**self._sampling_params, **question["sampling"]},
            image_data=self._pictures or None,
        )
        self._seconds += time.perf_counter() - started
        # Versions of the weights, from the first turn to the last.
        last = {"max_global_steps": output.extra_fields.get("max_global_steps")}
        self._fields = {**output.extra_fields, **self._fields, **last}
        return {"tokens": output.token_ids, "logprobs": output.log_probs, "reason": output.stop_reason}

    def output(self, sample: Mapping[str, Any], done: Mapping[str, Any]) -> Any:
        """Return a sequence of the attempt as verl's record."""
        return AgentLoopOutput(
            prompt_ids=sample["prompt"],
            response_ids=sample["response"],
            response_mask=sample["mask"],
            response_logprobs=sample["logprobs"],
            reward_score=done["reward"],
            num_turns=done["turns"],
            multi_modal_data={"images": self._pictures} if self._pictures else {},
            metrics=AgentLoopMetrics(generate_sequences=self._seconds),
            extra_fields={
                **self._fields,
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": dict(done["components"]),
            },
        )


def _picture(content: str) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(content)), formats=("PNG", "JPEG")).convert("RGB")
