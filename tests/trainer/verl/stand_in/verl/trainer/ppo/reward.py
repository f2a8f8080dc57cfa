"""Stand-in for verl's loading of reward managers by file."""

import runpy
from typing import Any


def load_reward_manager(config: Any, tokenizer: Any) -> Any:
    """Return the manager that the configuration names."""
    manager = config.reward.reward_manager
    return runpy.run_path(manager.module.path)[manager.name](config, tokenizer)
