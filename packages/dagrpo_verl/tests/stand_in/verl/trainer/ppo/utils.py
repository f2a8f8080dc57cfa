"""Stand-in for verl's rows and their order."""

from typing import Any

import pyarrow.parquet as pq
import torch
from torch.utils.data import RandomSampler, SequentialSampler


def need_critic(config: Any) -> bool:
    """Return False."""
    return False


def need_reference_policy(config: Any) -> bool:
    """Return True with a divergence."""
    return bool(config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward)


def create_rl_dataset(path: Any, config: Any, tokenizer: Any, processor: Any, **_: Any) -> list[dict[str, Any]]:
    """Return the rows of a parquet file as verl hands them out."""
    rows = pq.read_table(path).to_pylist()
    return [{**row, "raw_prompt": row["prompt"], "index": row["extra_info"]["index"]} for row in rows]


def create_rl_sampler(config: Any, rows: list[Any]) -> RandomSampler | SequentialSampler:
    """Return a sampler of all places of the rows, as they come or in random order, by the seed of the configuration."""
    if not config.shuffle:
        return SequentialSampler(rows)
    return RandomSampler(rows, generator=torch.Generator().manual_seed(config.seed))
