"""Prompts with pictures as verl's own data set, processor and agent loop make them, for test_verl_backend.py.

`python verl_pictures.py CHECK CONFIGURATION ROWS`, with verl's Python, prints tokens and sizes of pictures for the first rows.
CHECK is the path of dagrpo's composition.py; ROWS has the column `images`, which dagrpo's rows for verl have not.
"""

import asyncio
import json
import runpy
import sys
from typing import Any

from omegaconf import OmegaConf

FIRST = 4


class Recorder:
    """Policy that ends at once, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **request: Any) -> Any:
        """Return one token."""
        from verl.workers.rollout.replica import TokenOutput

        self.asked.append(request)
        return TokenOutput(token_ids=[0], log_probs=[-0.5], stop_reason="stop", extra_fields={})


def main(check: str, configuration: str, path: str) -> None:
    """Print the prompts of the first rows."""
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils.tokenizer import hf_processor, hf_tokenizer

    config = OmegaConf.load(configuration)
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "single_turn_agent"
    model, policy = config.actor_rollout_ref.model.path, Recorder()
    data = create_rl_dataset(path, config.data, hf_tokenizer(model), hf_processor(model), is_train=True)
    rows = [data[place] for place in range(FIRST)]
    attempt = runpy.run_path(check)["attempt"]
    for row in rows:  # one after the other, as they are asked
        asyncio.run(attempt(config, policy, [row]))
    prompts = [
        {
            "index": int(row["index"]),
            "prompt": list(asked["prompt_ids"]),
            "sizes": [each.size for each in asked["image_data"] or []],
        }
        for row, asked in zip(rows, policy.asked, strict=True)
    ]
    print(json.dumps(prompts))


if __name__ == "__main__":
    main(*sys.argv[1:])
