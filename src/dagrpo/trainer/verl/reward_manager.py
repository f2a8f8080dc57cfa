"""Reward manager of verl that asks our grading by pipe.

verl's Python imports it, in an environment without this package: only the standard library and verl itself are there.
"""

import asyncio
import runpy
from pathlib import Path
from typing import Any

try:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
except ImportError:  # in our own environment, where the file is only named
    RewardManagerBase = object
try:
    from dagrpo.trainer.foreign.reward_process import RewardProcess
except ImportError:  # in verl's environment
    path = Path(__file__).parents[1] / "foreign/reward_process.py"
    RewardProcess = runpy.run_path(str(path))["RewardProcess"]  # type: ignore[misc]

COMMAND = "dagrpo_command"  # key of reward.reward_kwargs: the command of the process that grades


class DagrpoRewardManager(RewardManagerBase):  # type: ignore[misc]
    """Manager that sends the tokens of each response to a process of dagrpo, and takes its reward."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self._process = RewardProcess(config.reward.reward_kwargs[COMMAND])

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Return the reward of one response and its components, as verl asks for them."""
        item = data[-1:][0]
        mask = item.batch["attention_mask"]
        width = item.batch["prompts"].shape[-1]
        step = item.non_tensor_batch.get("global_steps")
        question = {
            "step": None if step is None else int(step),
            "index": int(item.non_tensor_batch["extra_info"]["index"]),
            "prompt": item.batch["prompts"][mask[:width].bool()].tolist(),
            "response": item.batch["responses"][mask[width:].bool()].tolist(),
        }
        reply = await asyncio.get_running_loop().run_in_executor(None, self._process.ask, question)
        return {"reward_score": reply.pop("reward"), "reward_extra_info": reply}
