"""Vision tower of the policy: image features from picture files.

The language model reads them in the place of the placeholders. A frozen tower computes the features of each picture once per step,
for all samples, micro-batches and passes, in a separate forward pass: they have the same bits whatever else is computed. A trained
one computes them in every forward pass, once for each picture of a micro-batch, and gets the sum of the gradients of all its
samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.trainer.batches.images import PaddedPictures

if TYPE_CHECKING:  # Pillow is imported with the first model that takes pictures
    from dagrpo.models.pictures import PictureProcessor, Pixels

Vision = Literal["frozen", "trained"]
PIXELS_KEPT = 128  # pictures, between the passes of a step: 1.2 GB where each has 2,000 patches of 14 by 14


def tower_module(model: PreTrainedModel) -> torch.nn.Module | None:
    """Return the vision tower of a model, with its projection into the language model; None without one of a known family."""
    if not hasattr(model.config, "vision_config"):
        return None
    from dagrpo.models.pictures import FAMILIES

    if model.config.model_type not in FAMILIES:
        return None
    module: torch.nn.Module = model.base_model.visual
    return module


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Features of pictures, under the names that transformers' models read."""

    pooler_output: tuple[Tensor, ...]  # [pictures], each [tokens, width]
    deepstack_features: tuple[tuple[Tensor, ...], ...]  # [layers][pictures], the same shapes: of Qwen3-VL, else ()

    @classmethod
    def of(cls, output: Any) -> "Features":
        """Build from the output of transformers' `get_image_features`."""
        layers = getattr(output, "deepstack_features", None) or ()
        return cls(pooler_output=tuple(output.pooler_output), deepstack_features=tuple(map(tuple, layers)))

    @classmethod
    def joined(cls, parts: "Sequence[Features]") -> "Features":
        """Join the features of several pictures."""
        return cls(
            pooler_output=tuple(each for part in parts for each in part.pooler_output),
            deepstack_features=tuple(
                tuple(each for part in layer for each in part)
                for layer in zip(*(part.deepstack_features for part in parts), strict=True)
            ),
        )

    def at(self, places: Sequence[int]) -> "Features":
        """Return the features of the pictures `places`, in that order."""
        return Features(
            pooler_output=tuple(self.pooler_output[place] for place in places),
            deepstack_features=tuple(tuple(layer[place] for place in places) for layer in self.deepstack_features),
        )

    def to(self, device: torch.device) -> "Features":
        """Return a copy on a device."""
        return Features(
            pooler_output=tuple(each.to(device, non_blocking=True) for each in self.pooler_output),
            deepstack_features=tuple(
                tuple(each.to(device, non_blocking=True) for each in layer) for layer in self.deepstack_features
            ),
        )


class Tower:
    """Vision tower of one policy. The module itself is part of the policy's model."""

    def __init__(self, model: PreTrainedModel, folder: Path, *, frozen: bool, shared: bool) -> None:
        """Wrap the tower of `model`. `folder` has the settings of its pictures, read with the first one.

        `shared`: several ranks hold its parts and run it together; a frozen one is not shared.
        """
        assert not (frozen and shared), "who runs it alone has all of it"
        self.frozen = frozen
        self._model = model.base_model
        self._folder = folder
        self._shared = shared
        self._pixels = lru_cache(PIXELS_KEPT)(self._read)
        self._features: dict[bytes, tuple[Features, Tensor]] = {}

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, pictures: PaddedPictures | None
    ) -> dict[str, Any]:
        """Return the model's inputs for a batch: its tokens, [sequences, length], their mask, and the features of `pictures`.

        Raises UserError if the processor's settings cannot be used.
        """
        if pictures is None and self._shared:
            return self._with_a_blank(input_ids, attention_mask)
        if pictures is None:
            return {"input_ids": input_ids, "attention_mask": attention_mask}
        features, grids = self._kept(pictures.files) if self.frozen else self._trained(pictures.files)
        places = [*pictures.places]
        return self._inputs(input_ids, attention_mask, features.at(places), grids[places])

    def patches(self, file: bytes) -> int:
        """Return the number of patches of a picture. Raises UserError as `shown` does."""
        return self._processor.patches(file)

    def forget(self) -> None:
        """Free the features of a step."""
        self._features.clear()

    @cached_property
    def _processor(self) -> "PictureProcessor":
        from dagrpo.models.pictures import PictureProcessor

        return PictureProcessor.of(self._folder)

    def _read(self, file: bytes) -> "Pixels":
        return self._processor.pixels(file)

    def _inputs(self, input_ids: Tensor, attention_mask: Tensor, features: Features, grids: Tensor) -> dict[str, Any]:
        """Return the model's inputs, with token types: without them Qwen2.5-VL would silently count positions as in a text."""
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "mm_token_type_ids": (input_ids == self._model.config.image_token_id).int() * attention_mask.int(),
            "image_grid_thw": grids.to(input_ids.device),
            "mm_encoder_outputs": {"image": features},
        }

    def _trained(self, files: Sequence[bytes]) -> tuple[Features, Tensor]:
        return self._features_of([self._pixels(file) for file in files])

    def _features_of(self, pictures: "Sequence[Pixels]") -> tuple[Features, Tensor]:
        """Compute features and grids, [pictures, 3], in one forward pass."""
        device = self._model.device
        grids = torch.stack([picture.grid for picture in pictures])
        values = torch.cat([picture.pixel_values for picture in pictures])
        output = self._model.get_image_features(values.to(device), grids.to(device), return_dict=True)
        return Features.of(output), grids

    @torch.no_grad()
    def _kept(self, files: Sequence[bytes]) -> tuple[Features, Tensor]:
        """Return features and grids of a frozen tower, cached on the CPU."""
        for file in files:
            if file not in self._features:
                features, grid = self._features_of([self._read(file)])
                self._features[file] = features.to(torch.device("cpu")), grid
        cached = [self._features[file] for file in files]
        joined = Features.joined([features for features, _ in cached])
        return joined.to(self._model.device), torch.cat([grid for _, grid in cached])

    def _with_a_blank(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
        """Add a sequence with a blank picture, from which nothing is learned: ranks with pictures wait for this one."""
        image = torch.nn.functional.pad(
            input_ids.new_full((1, 1), self._model.config.image_token_id), _up_to(input_ids)
        )
        mask = torch.nn.functional.pad(attention_mask.new_ones(1, 1), _up_to(input_ids))
        features, grids = self._features_of([_blank(self._model.config.vision_config)])
        return self._inputs(torch.cat([input_ids, image]), torch.cat([attention_mask, mask]), features, grids)


def _up_to(input_ids: Tensor) -> tuple[int, int]:
    """Return the padding from one token to the length of a batch."""
    return 0, input_ids.shape[1] - 1


def _blank(vision: Any) -> "Pixels":
    """Return a grey picture of one token."""
    from dagrpo.models.pictures import Pixels

    side = vision.spatial_merge_size
    width = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
    return Pixels(pixel_values=torch.zeros(side * side, width), grid=torch.tensor([1, side, side]))
