"""`python -m dagrpo.pipeline.launch N tests/trainer/loss_scale_runs.py INITIAL OUT`: updates in float16 from a scale that is too large.

Each rank writes OUT/<rank>.json: what it skipped, its scale, and a number that says whether the weights changed.
"""

import json
import sys
from pathlib import Path

import torch
from tests.trainer.checks.ranks import weight_sum
from tests.trainer.updates import TRAINING, rollouts, update_of

from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.update.policy_update import LOSS_SCALE
from dagrpo.utils.distributed import World, process_group

UPDATES = 12


def run(initial: Path, out: Path, world: World) -> None:
    policy = load_policy(initial, world, dtype=torch.float16)
    update = update_of(
        policy,
        world,
        Budget(sequences=3),
        training=TRAINING.model_copy(update={"dtype": "float16"}),
        saved={LOSS_SCALE: {"value": 2.0**32, "finite_updates": 0}},
    )
    seen = []
    for step in range(UPDATES):
        stats = update.run(0, rollouts(0))
        seen.append({"step": step, "skipped": stats.skipped, "overflowed": stats.overflowed, "scale": stats.loss_scale})
        seen[-1] |= {"norm": stats.grad_norm, "sum": weight_sum(policy, world)}
    (out / f"{world.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    with process_group() as joint:
        run(Path(sys.argv[1]), Path(sys.argv[2]), joint)
