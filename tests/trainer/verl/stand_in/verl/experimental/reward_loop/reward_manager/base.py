"""Stand-in for verl's base of reward managers."""

from typing import Any


class RewardManagerBase:
    """Base with what a manager is given."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any) -> None:
        self.config, self.tokenizer = config, tokenizer
