"""From a picture's file to what a vision-language model takes: how many tokens, and the pixels of its patches.

The image processor is transformers' own for Qwen2-VL, on Pillow, which the server runs too; nothing here needs torchvision.
The limits are those of the model folder's preprocessor_config.json. Not here: bringing foreign files into the one form
(tasks/images.py), and the model that reads the pixels.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from dagrpo import placeholders
from dagrpo.errors import UserError
from dagrpo.files import read_object
from dagrpo.records import PictureTokens

if TYPE_CHECKING:
    from torch import Tensor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
FAMILIES = ("qwen2_5_vl", "qwen3_vl")  # model_type of those whose pictures are known
MOST_ELONGATED = 200  # times as long as wide, at most: the image processor refuses more
_READ = ("PNG", "JPEG")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """A picture as a vision tower takes it."""

    pixel_values: "Tensor"  # [patches, channels * frames * patch * patch], float32
    grid: "Tensor"  # [3]: frames (1), rows and columns of patches


def takes_pictures(folder: Path) -> bool:
    """Whether the model of a folder has a vision tower, of whatever family."""
    return "vision_config" in read_object(folder / CONFIG)


class PictureProcessor:
    """The pictures of one model."""

    def __init__(self, tokens: PictureTokens, limits: dict[str, Any]) -> None:
        self.tokens = tokens
        self._limits = limits

    @classmethod
    def of(cls, folder: Path) -> "PictureProcessor":
        """That of a model's folder.

        UserError: a model of text alone, a family that is not known, or an image processor that is not the family's.
        """
        config = read_object(folder / CONFIG)
        _require_known(folder, config)
        if not (folder / PREPROCESSOR).is_file():
            raise UserError(f"{folder} has no {PREPROCESSOR}: copy that of the model it comes from into it.")
        limits = read_object(folder / PREPROCESSOR)
        _require_agreement(folder, config["vision_config"], limits)
        return cls(_tokens_of(folder, config), limits)

    @cached_property
    def _processor(self) -> "Qwen2VLImageProcessorPil":
        # Imported late: it brings transformers, which whoever only counts placeholders has no use for.
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return Qwen2VLImageProcessorPil.from_dict(self._limits)

    def count(self, file: bytes) -> int:
        """The placeholders of a picture, by its header alone. UserError: it is too long for its width."""
        with Image.open(io.BytesIO(file), formats=_READ) as picture:
            width, height = picture.size
        if max(width, height) > MOST_ELONGATED * min(width, height):
            raise UserError(
                f"the picture has {width:,} x {height:,} pixels, and none may be more than {MOST_ELONGATED} times as long as "
                "wide: leave it out, or cut it"
            )
        patches: int = self._processor.get_number_of_image_patches(height, width)
        return patches // self._processor.merge_size**2

    def expanded(self, token_ids: Sequence[int], files: Sequence[bytes]) -> tuple[int, ...]:
        """A prompt with one placeholder per picture -> with as many as each picture takes.

        UserError: there are not as many pictures as placeholders.
        """
        expanded = placeholders.with_lengths(token_ids, self.tokens, [self.count(file) for file in files])
        if expanded is None:
            places = sum(token == self.tokens.image for token in token_ids)
            raise UserError(f"the prompt shows {counted(places)}, and the problem has {counted(len(files))}")
        return expanded

    def collapsed(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The other way: each run of placeholders is one picture's, and becomes one placeholder."""
        return placeholders.collapsed(token_ids, self.tokens)

    def pixels(self, file: bytes) -> Pixels:
        """A picture's pixels, scaled to the model's limits and normalised."""
        with Image.open(io.BytesIO(file), formats=_READ) as picture:
            done = self._processor(picture.convert("RGB"), return_tensors="pt")
        return Pixels(pixel_values=done["pixel_values"], grid=done["image_grid_thw"][0])


def counted(pictures: int) -> str:
    """So many pictures, in words."""
    return "1 picture" if pictures == 1 else f"{pictures} pictures"


def _require_known(folder: Path, config: dict[str, Any]) -> None:
    family = config.get("model_type")
    if "vision_config" not in config:
        raise UserError(
            f"{folder} is a {family} model, which takes text alone: choose a vision-language model of "
            f"{' or '.join(FAMILIES)} for a task with pictures."
        )
    if family not in FAMILIES:
        raise UserError(
            f"{folder} is a {family} model, whose pictures are not known here ({', '.join(FAMILIES)} are): choose another, or "
            "add what docs/vision.md lists for a new family."
        )


def _require_agreement(folder: Path, vision: dict[str, Any], limits: dict[str, Any]) -> None:
    """The processor cuts what the tower was made for."""
    for ours, theirs in (("patch_size", "patch_size"), ("merge_size", "spatial_merge_size")):
        if limits.get(ours) is None or limits[ours] != vision.get(theirs):
            raise UserError(
                f"{folder / PREPROCESSOR} has {ours} {limits.get(ours)}, and vision_config.{theirs} of {CONFIG} is "
                f"{vision.get(theirs)}: copy both files from one model."
            )


def _tokens_of(folder: Path, config: dict[str, Any]) -> PictureTokens:
    keys = {
        "image": "image_token_id",
        "video": "video_token_id",
        "start": "vision_start_token_id",
        "end": "vision_end_token_id",
    }
    for key in keys.values():
        if not isinstance(config.get(key), int):
            raise UserError(f"{folder / CONFIG} has no {key}: copy that of the model it comes from into it.")
    return PictureTokens(**{name: config[key] for name, key in keys.items()})
