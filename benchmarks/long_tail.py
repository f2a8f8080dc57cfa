"""Seconds per step with a round that waits for its longest completion, and with one that ends when its batch is full, in one run.

    python -m benchmarks.long_tail [--prompts 4] [--samples 4] [--tokens 700] [--oversampling 2] [--steps 6] [--rounds 2]

A fresh Qwen2 of the size of arithmetic_tiny, free-running, on one real server; engine and trainer share the machine's cores. The first
step of each training warms up; of the others the median counts. In turn, each from the same start, so that other work on the
machine slows all of them: `waits` draws the batch and no more; `oversamples` draws more and waits for all of it; `cuts off` draws
as many and aborts the rest. The fresh model ends a completion by chance, so that its lengths have a tail: their mean and their
largest are printed. `cut off` are groups of a step, and `their tokens` what had been written for them, as far as the server tells.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.few_steps import Figures, engine_for, inputs_in, medians, seconds_of, steps_of, training_run

from dagrpo.engine.sglang.connect import open_sglang
from dagrpo.models.config import Fresh
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.run import TrainingRun

WARM_UP = 1
POSITIONS = 1024


def main() -> None:
    """Print all three, and what cutting off gains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=700)
    parser.add_argument("--oversampling", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    more = {"oversampling": given.oversampling}
    kinds: dict[str, dict[str, Any]] = {
        "waits": {},
        "oversamples": more,
        "cuts off": more | {"max_aborts": 3},
    }
    found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = inputs_in(folder, None, Fresh(max_position_embeddings=POSITIONS))
        engine = engine_for(round(given.prompts * given.oversampling) * given.samples, given.tokens)
        with open_sglang(inputs[0], engine, folder / "log", dtype="float32", deterministic=False) as pool:
            for number in range(given.rounds):
                for kind, dynamic in kinds.items():
                    run = _run(inputs, folder / f"{number}_{kind}", given, dynamic)
                    found[kind] += steps_of(run, pool)[WARM_UP:]
    _show(found)


def _show(found: Mapping[str, list[Figures]]) -> None:
    rows = {kind: medians(steps, _columns) for kind, steps in found.items()}
    print(f"{'':12}" + "".join(f"{name:>15}" for name in rows["waits"]))
    for kind, values in rows.items():
        print(f"{kind:12}" + "".join(f"{value:15.2f}" for value in values.values()))
    for kind in ("waits", "oversamples"):
        for part in ("step", "sampling"):
            print(f"{part}, {kind} / cuts off: {rows[kind][part] / rows['cuts off'][part]:.2f}")


def _columns(step: Figures) -> dict[str, float]:
    return {
        "step": seconds_of(step),
        "sampling": step["timing/rollout_seconds"],
        "update": step["timing/update_seconds"],
        "mean length": step["rollout/length_mean"],
        "largest": step["rollout/length_max"],
        "cut off": step.get("rollout/cut_off_groups", 0.0),
        "their tokens": step.get("rollout/cut_off_tokens", 0.0),
    }


def _run(inputs: tuple[Path, Path], folder: Path, given: argparse.Namespace, dynamic: dict[str, Any]) -> TrainingRun:
    training = {
        "steps": given.steps,
        "prompts_per_step": given.prompts,
        "samples_per_prompt": given.samples,
        "learning_rate": 1e-6,
        "dynamic_sampling": dynamic,
    }
    rollout = Rollout(max_new_tokens=given.tokens, deterministic=False)
    return training_run(inputs, folder, rollout, training, {"micro_batch_tokens": 8192})


if __name__ == "__main__":
    main()
