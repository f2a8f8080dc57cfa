"""`python -m dagrpo.pipeline.launch N tests/trainer/checks/ranks.py INITIAL OUT`: one rank's loss is not finite, then nobody's.

Each rank writes OUT/<rank>.json: how many updates were skipped, and a number that says whether the weights changed.
"""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tests.trainer.updates import rollouts, update_of

from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.policy import Policy
from dagrpo.utils.distributed import World, process_group


def run(initial: Path, out: Path, world: World) -> None:
    policy = load_policy(initial, world)
    update = update_of(policy, world, Budget(sequences=3))  # two mini-batches
    seen = []
    for batch in (_with_a_reward_that_is_no_number(rollouts(0)), rollouts(0)):
        stats = update.run(0, batch)
        seen.append(
            {"skipped": stats.skipped, "norm": stats.grad_norm, "loss": stats.loss, "sum": weight_sum(policy, world)}
        )
    (out / f"{world.rank}.json").write_text(json.dumps(seen))


def _with_a_reward_that_is_no_number(batch: Batch) -> Batch:
    """Its advantage is none either: that of the first trajectory, which rank 0 alone computes."""
    assert batch.advantages is not None
    advantages = batch.advantages.clone()
    advantages[0] = math.nan
    return replace(batch, advantages=advantages)


def weight_sum(policy: Policy, world: World) -> float:
    """Of the magnitudes of all weights, over all ranks."""
    own = (p.to_local() if hasattr(p, "to_local") else p for p in policy.parameters())
    return float(world.all_reduce(torch.stack([part.detach().double().abs().sum() for part in own]).sum().cpu()))


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    with process_group() as joint:
        run(Path(sys.argv[1]), Path(sys.argv[2]), joint)
