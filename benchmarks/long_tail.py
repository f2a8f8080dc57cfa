"""Seconds per step with a round that waits for its longest completion, and with one that ends when its batch is full, in one run.

    python -m benchmarks.long_tail [--prompts 4] [--samples 4] [--tokens 700] [--oversampling 2] [--steps 6] [--rounds 2]

A fresh Qwen2 of the size of arithmetic_tiny, free-running, on one real server; engine and trainer share the machine's cores. The first
step of each training warms up; of the others the median counts. In turn, each from the same start, so that other work on the
machine slows all of them: `waits` draws the batch and no more; `oversamples` draws more and waits for all of it; `cuts off` draws
as many and aborts the rest. The fresh model ends a completion by chance, so that its lengths have a tail: their mean and their
largest are printed. `cut off` are groups of a step, and `their tokens` what had been written for them, as far as the server tells.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.rollout.problems import example
from tests.trainer.lending import lending

from dagrpo.checkpoints.convert import convert
from dagrpo.distributed import single_process
from dagrpo.files import write_parquet
from dagrpo.models.fresh import make_fresh
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.checkpoint import Checkpoint
from dagrpo.params.model import Fresh
from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.runtime import Engine, Runtime
from dagrpo.params.training import Training
from dagrpo.rollout.engine.interface import EngineOpener
from dagrpo.rollout.engine.open import open_engine
from dagrpo.tasks.schema import to_table
from dagrpo.trainer.loop import train
from dagrpo.trainer.run import TrainingRun

WARM_UP = 1
POSITIONS = 1024
Figures = Mapping[str, float]


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
        inputs = _inputs(folder)
        with open_engine(inputs[0], _engine(given), folder / "log", dtype="float32", deterministic=False) as pool:
            for number in range(given.rounds):
                for kind, dynamic in kinds.items():
                    run = _run(inputs, folder / f"{number}_{kind}", given, dynamic)
                    found[kind] += _steps(run, lending(pool))[WARM_UP:]
    _show(found)


def _show(found: Mapping[str, list[Figures]]) -> None:
    medians = {kind: _medians(steps) for kind, steps in found.items()}
    print(f"{'':12}" + "".join(f"{name:>15}" for name in medians["waits"]))
    for kind, values in medians.items():
        print(f"{kind:12}" + "".join(f"{value:15.2f}" for value in values.values()))
    for kind in ("waits", "oversamples"):
        for part in ("step", "sampling"):
            print(f"{part}, {kind} / cuts off: {medians[kind][part] / medians['cuts off'][part]:.2f}")


def _medians(steps: list[Figures]) -> dict[str, float]:
    parts = [
        {
            "step": sum(
                value for name, value in step.items() if name.startswith("timing/") and name.endswith("_seconds")
            ),
            "sampling": step["timing/rollout_seconds"],
            "update": step["timing/update_seconds"],
            "mean length": step["rollout/length_mean"],
            "largest": step["rollout/length_max"],
            "cut off": step.get("rollout/cut_off_groups", 0.0),
            "their tokens": step.get("rollout/cut_off_tokens", 0.0),
        }
        for step in steps
    ]
    return {name: statistics.median(each[name] for each in parts) for name in parts[0]}


def _inputs(folder: Path) -> tuple[Path, Path]:
    """(initial checkpoint, train split)"""
    make_fresh(folder / "model", Fresh(max_position_embeddings=POSITIONS), torch.float32)
    convert(folder / "model", folder / "initial", Checkpoint())
    questions = ["+".join(str((7 * row + term) % 10) for term in range(8)) + "=?" for row in range(64)]
    rows = [example(each, index=number) for number, each in enumerate(questions)]
    write_parquet(folder / "train.parquet", to_table(rows))
    return folder / "initial", folder / "train.parquet"


def _engine(given: argparse.Namespace) -> Engine:
    requests = round(given.prompts * given.oversampling) * given.samples
    return Engine(max_running_requests=requests, max_total_tokens=max(32768, requests * (given.tokens + 64)))


def _run(inputs: tuple[Path, Path], folder: Path, given: argparse.Namespace, dynamic: dict[str, Any]) -> TrainingRun:
    shape: dict[str, Any] = {
        "steps": given.steps,
        "prompts_per_step": given.prompts,
        "samples_per_prompt": given.samples,
        "learning_rate": 1e-6,
        "dynamic_sampling": dynamic,
        "gates": {"truncated": None, "missing_answers": None, "without_advantage": None},
    }
    # Shorter completions are worth more, so that groups of a fresh model differ.
    components = {"accuracy": {}, "overlong": {"weight": 1.0, "buffer": given.tokens - 1}}
    folder.mkdir()
    return TrainingRun(
        initial=inputs[0],
        train_split=inputs[1],
        seed=0,
        rollout=Rollout(max_new_tokens=given.tokens, deterministic=False),
        reward=Reward.model_validate({"components": components}),
        algorithm=Algorithm(),
        training=Training.model_validate(shape),
        runtime=Runtime.model_validate(
            {"training": {"save_every": given.steps, "keep_states": 0, "micro_batch_tokens": 8192}}
        ),
        state=folder / "state",
        server_log=folder / "server.log",
        policy=folder / "policy",
        metrics=folder / "metrics.parquet",
        rollouts=folder / "rollouts" / "manifest.json",
        held_out=folder / "held_out.parquet",
    )


def _steps(run: TrainingRun, opener: EngineOpener) -> list[Figures]:
    reported: list[Figures] = []
    train(run, lambda step, metrics: reported.append(dict(metrics)), single_process(), opener)
    return reported


if __name__ == "__main__":
    main()
