"""Reward manager of verl that asks our grading by pipe.

verl's Python imports it, in an environment without this package: only the standard library and verl itself are there.
"""

import asyncio
import json
import subprocess
import threading
from typing import Any

try:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
except ImportError:  # in our own environment, where the file is only named
    RewardManagerBase = object

COMMAND = "dagrpo_command"  # key of reward.reward_kwargs: the command of the process that grades


class DagrpoRewardManager(RewardManagerBase):  # type: ignore[misc]
    """Manager that sends the tokens of each response to a process of dagrpo, one line of JSON each, and reads its line."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self._command = list(config.reward.reward_kwargs[COMMAND])
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Return the reward of one response and its components, as verl asks for them."""
        item = data[-1:][0]
        mask = item.batch["attention_mask"]
        width = item.batch["prompts"].shape[-1]
        question = {
            "step": _plain(item.non_tensor_batch.get("global_steps")),
            "index": int(item.non_tensor_batch["extra_info"]["index"]),
            "prompt": item.batch["prompts"][mask[:width].bool()].tolist(),
            "response": item.batch["responses"][mask[width:].bool()].tolist(),
        }
        reply = await asyncio.get_running_loop().run_in_executor(None, self._ask, json.dumps(question))
        return {"reward_score": reply.pop("reward"), "reward_extra_info": reply}

    def _ask(self, line: str) -> dict[str, Any]:
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


def _plain(step: Any) -> int | None:
    return None if step is None else int(step)
