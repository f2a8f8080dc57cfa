"""An update by several processes that add up their gradients once, against one in which they do so after each micro-batch.

    OMP_NUM_THREADS=1 python -m benchmarks.reduction [--processes 2] [--micro-batches 8] [--updates 4]

A fresh Qwen2 of 3.6 million parameters and made-up sequences of 16 tokens, four in a micro-batch: much is sent, and little computed.
Printed are the seconds of the fastest update, and how many reductions of gradients (reduce-scatter) it took. Between processes of one
machine, by gloo: between machines, or GPUs, reductions take another share of the time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

import torch
from tests.trainer.updates import batch_of, counted

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.trainer.batches.batch import Batch
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.runtime import Reduction
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.optimizer import adamw
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import process_group

SHAPE = Fresh(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=768,
    max_position_embeddings=64,
)
SEQUENCES = 4  # of a micro-batch


def main() -> None:
    """Launch the processes; a process that was launched computes, and the first one prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--initial", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.initial is not None:
        _compute(given.initial, given.micro_batches, given.updates)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_fresh(Path(folder) / "model", SHAPE, torch.float32)
        convert(Path(folder) / "model", Path(folder) / "initial", Checkpoint())
        launch = [sys.executable, "-m", "dagrpo.pipeline.launch", str(given.processes), __file__]
        own = ["--initial", f"{folder}/initial", "--micro-batches", str(given.micro_batches)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([*launch, *own, "--updates", str(given.updates)], check=True, env=environment)


def _compute(initial: Path, micro_batches: int, updates: int) -> None:
    with process_group() as world:
        count = micro_batches * SEQUENCES * world.size
        training = Training.model_validate(
            {"prompts_per_step": count // 4, "samples_per_prompt": 4, "digests_every": 0}
        )
        policy = load_policy(initial, world)
        optimizer = adamw(policy.parameters(), 0.0)
        taken: dict[str, list[tuple[float, int]]] = {}
        for step in range(updates):
            for reduction in get_args(Reduction):
                update = PolicyUpdate(
                    policy=policy,
                    reference=None,
                    optimizer=optimizer,
                    algorithm=Algorithm(),
                    training=training,
                    budget=Budget(sequences=SEQUENCES, reduce_gradients=reduction),
                    temperature=1.0,
                    max_new_tokens=8,
                    pad_token_id=0,
                    world=world,
                )
                world.barrier()
                start = time.perf_counter()
                with counted() as sizes:
                    update.run(step, _rollouts(count))
                taken.setdefault(reduction, []).append((time.perf_counter() - start, len(sizes)))
        if world.is_rank_zero:
            for reduction, own in taken.items():
                print(f"| {reduction} | {min(own)[0]:.2f} s | {own[0][1]} |")


def _rollouts(count: int) -> Batch:
    drawn = torch.Generator().manual_seed(0)
    prompts, completions = (torch.randint(3, 60, (count, 8), generator=drawn).tolist() for _ in range(2))
    return batch_of(prompts, completions, torch.linspace(-1, 1, count))


if __name__ == "__main__":
    main()
