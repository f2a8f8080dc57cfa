"""Whole runs of the trainer that train an adapter."""

from dataclasses import replace
from typing import Any

from dagrpo.algorithms.config import Algorithm
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun

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
