"""Whole runs of the trainer that train an adapter, and a scripted engine that serves one."""

from pathlib import Path
from typing import Any

import torch
from tests.trainer import runs

from dagrpo.checkpoints.lora_layers import matrices_of
from dagrpo.checkpoints.tensors import StateTensors, Tensors
from dagrpo.engine.interface import Adapter, HeldWeights
from dagrpo.engine.sglang.digests import SGLangWeights, digest_on_cpu
from dagrpo.trainer.run import TrainingRun

LORA: dict[str, Any] = {"rank": 4, "alpha": 8}
SERVED = LORA | {"serving": "adapter"}


def with_adapter(run: TrainingRun, lora: dict[str, Any] = LORA) -> TrainingRun:
    """The same run with an adapter, two updates a step and a reference."""
    return runs.changed(run, training={"mini_batches": 2, "lora": lora}, algorithm={"kl": {"coefficient": 0.1}})


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
    return runs.changed(with_adapter(plain, SERVED | (lora or {})), training={"gates": gates})
