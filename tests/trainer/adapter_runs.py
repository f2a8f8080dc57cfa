"""Whole runs of the trainer that train an adapter, and a scripted engine that serves one.

`python -m dagrpo.pipeline.launch N tests/trainer/adapter_runs.py INITIAL SPLIT OUT STEPS` trains in N processes, and writes
OUT/asked.json: what the engine was asked.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.trainer import runs

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.lora_layers import matrices_of
from dagrpo.checkpoints.tensors import StateTensors, Tensors
from dagrpo.engine.interface import Adapter, HeldWeights
from dagrpo.engine.sglang.digests import SGLangWeights, digest_on_cpu
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.distributed import process_group

LORA: dict[str, Any] = {"rank": 4, "alpha": 8}
SERVED = LORA | {"serving": "adapter"}


def with_adapter(run: TrainingRun, lora: dict[str, Any] = LORA) -> TrainingRun:
    """The same run with an adapter, two updates a step and a reference."""
    training = run.training.model_dump() | {"mini_batches": 2, "lora": lora}
    return replace(
        run,
        training=Training.model_validate(training),
        algorithm=Algorithm.model_validate({"kl": {"coefficient": 0.1}}),
    )


class Serving(runs.ScriptedEngine):
    """Keeps its weights, and answers with W + alpha / rank * B A of the adapter that it was given last."""

    def serve(self, weights: Tensors, adapter: Adapter, version: str) -> None:
        self.base = {name: weights.read(name).clone() for name in weights.specs}
        self.scale = adapter.form.alpha / adapter.form.rank
        self.load(adapter.tensors, version)

    def fill(self, weights: Tensors) -> None:
        self.adapter = self.taken({name: weights.read(name).clone() for name in weights.specs})
        merged = dict(self.base)
        for name, weight in self.base.items():
            down, up = matrices_of(name.removesuffix(".weight"))
            if down in self.adapter:
                merged[name] = weight + self.scale * (self.adapter[up] @ self.adapter[down])
        super().fill(StateTensors(merged))

    def taken(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors

    def digests(self) -> list[HeldWeights]:
        return [SGLangWeights(({name: digest_on_cpu(tensor) for name, tensor in (self.base | self.adapter).items()},))]


def served_run(
    inputs: tuple[Path, Path], out: Path, lora: dict[str, Any] | None = None, *, steps: int = 4, **gates: Any
) -> TrainingRun:
    """Four steps with an adapter that the engine serves."""
    plain = runs.training_run(inputs, out / "state", out, steps)
    run = with_adapter(plain, SERVED | (lora or {}))
    training = run.training.model_dump() | {"gates": run.training.gates.model_dump() | gates}
    return replace(run, training=Training.model_validate(training))


if __name__ == "__main__":
    with process_group() as joint:
        initial, split, out, steps = sys.argv[1:]
        orders, _ = runs.execute(served_run((Path(initial), Path(split)), Path(out), steps=int(steps)), Serving, joint)
        if joint.is_rank_zero:
            (Path(out) / "asked.json").write_text(json.dumps(orders))
