"""Seconds per step with training.staleness 0 and 1, in one run with one server: what sampling while the policy is updated gains.

    python -m benchmarks.overlap [--model MODEL] [--prompts 16] [--samples 8] [--tokens 64] [--steps 8] [--rounds 2] [--threads 1]

Without a model, a fresh Qwen2 of the size of arithmetic_tiny. Each round trains both from the same start, in turn, so that other work
on the machine slows both. The first two steps of a training warm up; of the others the median counts. In lockstep, and on one machine:
engine and trainer share its cores. `sampling` and `update` are the seconds that a batch and an update take, `waiting` those that the
trainer waits for a batch.
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

WARM_UP = 2
Figures = Mapping[str, float]


def main() -> None:
    """Print both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder in the Hugging Face layout")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, help="of the trainer; the server has one")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    found: dict[int, list[Figures]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = _inputs(folder, given)
        with open_engine(inputs[0], _engine(given), folder / "log", dtype="float32", deterministic=True) as pool:
            for number in range(given.rounds):
                for staleness in found:
                    run = _run(inputs, folder / f"{number}_{staleness}", given, staleness)
                    found[staleness] += _steps(run, lending(pool))[WARM_UP:]
    _show(found)


def _show(found: Mapping[int, list[Figures]]) -> None:
    medians = {staleness: _medians(steps) for staleness, steps in found.items()}
    print(f"{'staleness':10}" + "".join(f"{name:>10}" for name in medians[0]))
    for staleness, values in medians.items():
        print(f"{staleness:<10}" + "".join(f"{value:10.3f}" for value in values.values()))
    print(f"step, 0 / 1: {medians[0]['step'] / medians[1]['step']:.2f}")


def _medians(steps: list[Figures]) -> dict[str, float]:
    """Seconds, by part."""
    parts = [
        {
            "step": sum(
                value for name, value in step.items() if name.startswith("timing/") and name.endswith("_seconds")
            ),
            "sampling": step.get("rollout/ahead_seconds", step["timing/rollout_seconds"]),
            "waiting": step["timing/rollout_seconds"],
            "update": step["timing/update_seconds"],
            "hand over": step["timing/hand_over_seconds"],
            "gates": step["timing/gates_seconds"],
        }
        for step in steps
    ]
    return {name: statistics.median(each[name] for each in parts) for name in parts[0]}


def _inputs(folder: Path, given: argparse.Namespace) -> tuple[Path, Path]:
    """(initial checkpoint, train split)"""
    model = given.model
    if model is None:
        model = folder / "model"
        make_fresh(model, Fresh(), torch.float32)
    convert(model, folder / "initial", Checkpoint())
    questions = ["+".join(str((7 * row + term) % 10) for term in range(8)) + "=?" for row in range(64)]
    rows = [example(each, index=number) for number, each in enumerate(questions)]
    write_parquet(folder / "train.parquet", to_table(rows))
    return folder / "initial", folder / "train.parquet"


def _engine(given: argparse.Namespace) -> Engine:
    requests = given.prompts * given.samples
    return Engine(max_running_requests=requests, max_total_tokens=max(32768, requests * (given.tokens + 64)))


def _run(inputs: tuple[Path, Path], folder: Path, given: argparse.Namespace, staleness: int) -> TrainingRun:
    shape: dict[str, Any] = {
        "steps": given.steps,
        "prompts_per_step": given.prompts,
        "samples_per_prompt": given.samples,
        "learning_rate": 1e-5,
        "staleness": staleness,
        "gates": {"truncated": None, "missing_answers": None, "without_advantage": None},
    }
    # Shorter completions are worth more, so that groups of a fresh model differ.
    components = {"accuracy": {}, "overlong": {"weight": 1.0, "buffer": given.tokens - 1}}
    folder.mkdir()
    return TrainingRun(
        initial=inputs[0],
        train_split=inputs[1],
        seed=0,
        rollout=Rollout(max_new_tokens=given.tokens),
        reward=Reward.model_validate({"components": components}),
        algorithm=Algorithm(),
        training=Training.model_validate(shape),
        runtime=Runtime.model_validate({"training": {"save_every": given.steps, "keep_states": 0}}),
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
