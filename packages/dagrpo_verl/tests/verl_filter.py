"""Groups that verl's own replay buffer trains on with dynamic sampling, for test_oracle.py.

`python verl_filter.py CONFIGURATION`, with verl's Python, prints the prompts of a step of 2.
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

GROUPS = [
    [(0.0, 0.0), (1.0, 1.0)],
    [(0.0, 0.0), (0.5, 0.0)],
    [(1.0, 1.0)] * 2,
    [(1.0, 1.0), (0.2, 0.0)],
]  # (reward, acc)


class Queue(ModuleType):
    """TransferQueue in memory, which is not installed here."""

    KVBatchMeta = SimpleNamespace

    def __init__(self, tensor: Any) -> None:
        super().__init__("transfer_queue")
        self.tensor = tensor
        self.tags: dict[str, dict[str, Any]] = {}
        self.values: dict[str, dict[str, Any]] = {}
        self.sampled = 0

    def add(self, prompts: int) -> None:
        """Add finished groups."""
        for number in range(self.sampled, self.sampled + prompts):
            self.tags[str(number)] = {"is_prompt": True, "status": "finished", "global_steps": 1}
            for session, (reward, acc) in enumerate(GROUPS[number % len(GROUPS)]):
                key = f"{number}_{session}_0"
                self.tags[key] = {"status": "success"}
                self.values[key] = {
                    "rm_scores": self.tensor([0.0, reward]),
                    "extra_fields": {"reward_extra_info": {"acc": acc}},
                }

        self.sampled += prompts

    def kv_list(self) -> dict[str, Any]:
        """Return all tags by partition."""
        return {"train": self.tags}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        """Return columns."""
        return {name: [self.values[key][name] for key in keys] for name in select_fields}

    def kv_clear(self, partition_id: str, keys: list[str]) -> None:
        """Forget keys."""
        for key in keys:
            self.tags.pop(key, None)


def main(path: str) -> None:
    """Sample one step."""
    import torch
    from omegaconf import OmegaConf

    sys.modules["transfer_queue"] = queue = Queue(torch.tensor)
    trainer = runpy.run_path(str(Path(__file__).with_name("verl_draws.py")))["trainer_class"]()
    sampling = object.__new__(trainer)
    sampling.config, sampling.trainer_mode = OmegaConf.load(path), "sync"
    sampling._add_prompts_to_generate = queue.add
    buffer = sampling._build_replay_buffer()
    queue.add(2)
    batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    print(sorted({int(key.partition("_")[0]) for key in batch.keys}))


if __name__ == "__main__":
    main(sys.argv[1])
