"""Whole runs of the trainer whose problems show pictures, with an engine that is transformers' own forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.trainer import runs, vision

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.modules import build_model
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.types import Row, SamplingRequest
from dagrpo.data.schema import to_table
from dagrpo.models.config import Fresh, Model
from dagrpo.models.make import make_model
from dagrpo.models.pictures import PictureProcessor
from dagrpo.trainer.model.vision_tower import Vision
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.tables import write_parquet

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}
TOWER = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4}


class SeeingEngine(runs.ScriptedEngine):
    """A scripted engine whose logprobs are of what the pictures show, each request by itself."""

    def __init__(self, model: Path, asked: list[str]) -> None:
        super().__init__(model, asked)
        self._folder = model
        self._processor = PictureProcessor.of(model)

    def fill(self, weights: Tensors) -> None:
        state = {name: weights.read(name).clone() for name in weights.specs}  # the model takes over the storage
        self._model = build_model(self._folder, state, torch.float32)

    def _shown(self, request: SamplingRequest, tokens: Sequence[int]) -> dict[str, Any]:
        assert request.pictures is not None
        read = super()._shown(request, tokens)
        pixels = [self._processor.pixels(file) for file in request.pictures.files]
        if not pixels:
            return read
        return read | {
            "mm_token_type_ids": (read["input_ids"] == self._processor.tokens.image).int(),
            "pixel_values": torch.cat([each.pixel_values for each in pixels]),
            "image_grid_thw": torch.stack([each.grid for each in pixels]),
        }


class StaleEngine(SeeingEngine):
    """One that goes on with what the tower of its first weights has made of pictures, as SGLang's cache does."""

    first: dict[str, torch.Tensor]

    def fill(self, weights: Tensors) -> None:
        super().fill(weights)
        tower = {name: value for name, value in self._model.state_dict().items() if ".visual." in name}
        if self.asked == ["load step_0"]:
            self.first = {name: value.clone() for name, value in tower.items()}
        self._model.load_state_dict(self.first, strict=False)


def make_inputs(folder: Path, family: str) -> tuple[Path, Path]:
    """(initial checkpoint, train split) with ten problems that show one picture, two, or none."""
    shape = Fresh.model_validate(SHAPE | {"vision": TOWER | {"family": family}})
    make_model(folder / "model", Model(fresh=shape, max_pixels=16 * 64))
    convert(folder / "model", folder / "initial", Checkpoint())
    write_parquet(folder / "train.parquet", to_table([_row(number) for number in range(10)]))
    return folder / "initial", folder / "train.parquet"


def _row(number: int) -> Row:
    """Three in four have pictures of their own."""
    files = [vision.picture(10 * number + each, 16, 24) for each in range((1, 2, 0, 1)[number % 4])]
    return runs.example_with_pictures(number, *files)


def training_run(inputs: tuple[Path, Path], out: Path, steps: int, kind: Vision) -> TrainingRun:
    """Two updates a step, with a reference; see runs.training_run."""
    run = runs.training_run(inputs, out / "state", out, steps, micro_batch_size=3)
    own = {"mini_batches": 2, "vision": kind, "vision_learning_rate": 0.3 if kind == "trained" else None}
    return runs.changed(run, training=own, algorithm={"kl": {"coefficient": 0.1}})
