"""One update of four micro-batches by several processes, in which the reductions of gradients are counted.

`python -m dagrpo.pipeline.launch N tests/trainer/reduction_runs.py INITIAL OUT` writes to OUT, as JSON, how many there
were for each value of
runtime.training.reduce_gradients, and what each did.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from tests.trainer.updates import TRAINING, rollouts, update_of

from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.runtime import Reduction
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import World, process_group


@contextmanager
def counted() -> Iterator[list[int]]:
    """The elements of each reduce-scatter, which is how FSDP adds gradients up."""
    sizes: list[int] = []
    reduce = dist.reduce_scatter_single

    def noted(**given: Any) -> Any:
        sizes.append(given["input"].numel())
        return reduce(**given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "reduce_scatter_single", noted)
        yield sizes


def update_once(initial: Path, world: World, reduction: Reduction, rank: int, dtype: torch.dtype) -> dict[str, Any]:
    """What one update of a single mini-batch does, by a policy with an adapter of that rank (0: none)."""
    policy = load_policy(initial, world, lora=Lora(rank=rank, alpha=8), dtype=dtype, activation_checkpointing=True)
    budget = Budget(sequences=24 // world.size // 4, reduce_gradients=reduction)
    update = update_of(policy, world, budget, initial, training=TRAINING.model_copy(update={"mini_batches": 1}))
    with counted() as sizes:
        stats = update.run(0, rollouts(0))
    second = update.run(1, rollouts(1))  # of weights that the first has moved
    seen = {"norm": stats.grad_norm, "loss": stats.loss, "norm after": second.grad_norm, "loss after": second.loss}
    return {"reductions": len(sizes), "elements": sum(sizes), "seen": seen}


if __name__ == "__main__":
    with process_group() as joint:
        done = {
            f"{dtype} {rank}": {
                reduction: update_once(Path(sys.argv[1]), joint, reduction, rank, getattr(torch, dtype))
                for reduction in get_args(Reduction)
            }
            for dtype in ("float32", "bfloat16")
            for rank in (0, 4)
        }
        if joint.is_rank_zero:
            Path(sys.argv[2]).write_text(json.dumps(done))
