"""Seconds per step with training.staleness 0 and 1, in one run with one server: what sampling while the policy is updated gains.

    python -m benchmarks.overlap [--model MODEL] [--prompts 16] [--samples 8] [--tokens 64] [--steps 8] [--rounds 2] [--threads 1]

Without a model, a fresh Qwen2 of the size of arithmetic_tiny. Each round trains both from the same start, in turn, so that other work
on the machine slows both. The first two steps of a training warm up; of the others the median counts. In lockstep, and on one machine:
engine and trainer share its cores. `sampling` and `update` are the seconds that a batch and an update take, `waiting` those that the
trainer waits for a batch.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from benchmarks.few_steps import Figures, engine_for, inputs_in, medians, seconds_of, steps_of, training_run

from dagrpo.engine.sglang.connect import open_sglang
from dagrpo.models.config import Fresh
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.run import TrainingRun

WARM_UP = 2


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
        inputs = inputs_in(folder, given.model, Fresh())
        engine = engine_for(given.prompts * given.samples, given.tokens)
        with open_sglang(inputs[0], engine, folder / "log", dtype="float32", deterministic=True) as pool:
            for number in range(given.rounds):
                for staleness in found:
                    run = _run(inputs, folder / f"{number}_{staleness}", given, staleness)
                    found[staleness] += steps_of(run, pool)[WARM_UP:]
    _show(found)


def _show(found: Mapping[int, list[Figures]]) -> None:
    rows = {staleness: medians(steps, _columns) for staleness, steps in found.items()}
    print(f"{'staleness':10}" + "".join(f"{name:>10}" for name in rows[0]))
    for staleness, values in rows.items():
        print(f"{staleness:<10}" + "".join(f"{value:10.3f}" for value in values.values()))
    print(f"step, 0 / 1: {rows[0]['step'] / rows[1]['step']:.2f}")


def _columns(step: Figures) -> dict[str, float]:
    """Seconds, by part."""
    return {
        "step": seconds_of(step),
        "sampling": step.get("rollout/ahead_seconds", step["timing/rollout_seconds"]),
        "waiting": step["timing/rollout_seconds"],
        "update": step["timing/update_seconds"],
        "weight sync": step["timing/weight_sync_seconds"],
        "gates": step["timing/gates_seconds"],
    }


def _run(inputs: tuple[Path, Path], folder: Path, given: argparse.Namespace, staleness: int) -> TrainingRun:
    training = {
        "steps": given.steps,
        "prompts_per_step": given.prompts,
        "samples_per_prompt": given.samples,
        "learning_rate": 1e-5,
        "staleness": staleness,
    }
    return training_run(inputs, folder, Rollout(max_new_tokens=given.tokens), training, {})


if __name__ == "__main__":
    main()
