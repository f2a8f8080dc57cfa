"""Prompts of each step by the methods of verl's trainer, stopped and resumed after a step, for test_oracle.py.

`python verl_draws.py CONFIGURATION STEPS RESUMED_AFTER`, with verl's Python, prints the rows of each step.
"""

import json
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf


class Missing(ModuleType):
    """Module that is not installed, with a class for each name: of the queue, the servers and the engine, which draw no prompts."""

    __path__ = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def trainer_class() -> Any:
    """Return verl's synchronous trainer."""
    while True:
        try:
            return import_module("verl.trainer.ppo.v1.trainer_sync").PPOTrainerSync
        except ModuleNotFoundError as error:
            sys.modules[str(error.name)] = Missing(str(error.name))


def trainer(config: Any) -> Any:
    """Return verl's trainer with its data loader alone."""
    from transformers import AutoTokenizer

    class Drawing(trainer_class()):  # type: ignore[misc]
        def __init__(self) -> None:
            self.config, self.trainer_mode, self.parameter_sync_step = config, "sync", 1
            self.tokenizer, self.processor = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path), None
            self._init_dataloader()

    return Drawing()


def main(path: str, steps: int, resumed_after: int) -> None:
    """Print the rows of all steps, a line each."""
    config = OmegaConf.load(path)
    first = trainer(config)
    rows = []
    for step in range(1, steps + 1):
        rows.append([int(index) for index in first._fetch_one_gen_batch()["index"]])
        if step == resumed_after:
            state, first = first.train_dataloader.state_dict(), trainer(config)
            first.train_dataloader.load_state_dict(state)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
