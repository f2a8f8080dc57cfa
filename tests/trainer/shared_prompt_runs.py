"""Two updates on groups that share prompts, in the process that calls it or in each of several.

`python -m dagrpo.pipeline.launch N tests/trainer/shared_prompt_runs.py INITIAL OUT` writes what the updates saw to OUT, as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from tests.trainer.updates import TRAINING, batch_of, update_of

from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import World, process_group

GROUP = TRAINING.samples_per_prompt


def grouped_rollouts(step: int) -> Batch:
    """24 trajectories with prompts of two to seven tokens, each of four trajectories, and completions of one to seven."""
    drawn = torch.Generator().manual_seed(step)
    prompts = [torch.randint(3, 60, (2 + group,), generator=drawn).tolist() for group in range(24 // GROUP)]
    completions = [torch.randint(3, 60, (1 + (row * 5) % 7,), generator=drawn).tolist() for row in range(24)]
    return batch_of([prompts[row // GROUP] for row in range(24)], completions, torch.linspace(-1.5, 1.5, 24).roll(step))


def seen_by(initial: Path, world: World, *, share_prompts: bool) -> list[dict[str, float]]:
    """Loss, divergence and gradient of two steps."""
    policy = load_policy(initial, world)
    update = update_of(policy, world, Budget(sequences=5, share_prompts=share_prompts, layout="packed"), initial)
    steps = [update.run(step, grouped_rollouts(step)) for step in range(2)]
    return [{"loss": stats.loss, "kl": stats.kl, "norm": stats.grad_norm} for stats in steps]


if __name__ == "__main__":
    with process_group() as joint:
        seen = seen_by(Path(sys.argv[1]), joint, share_prompts=True)
        if joint.is_rank_zero:
            Path(sys.argv[2]).write_text(json.dumps(seen))
