"""Image preprocessing: the number of tokens and the patches of a picture.

The image processor is transformers' own for Qwen2-VL, on Pillow, which the server runs too; torchvision is not needed.
The limits are those of the model folder's preprocessor_config.json. data/images.py converts foreign files.
"""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.core import image_tokens
from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_ELONGATED
from dagrpo.core.types import PictureTokens
from dagrpo.utils.files import read_object, write_json

if TYPE_CHECKING:
    from torch import Tensor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
FAMILIES = ("qwen2_5_vl", "qwen3_vl")  # model_type of those whose pictures are known
DEFAULT_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}  # transformers', where the file says nothing
_READ = ("PNG", "JPEG")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """A picture as a vision tower takes it."""

    pixel_values: "Tensor"  # [patches, channels * frames * patch * patch], float32
    grid: "Tensor"  # [3]: frames (1), rows and columns of patches


def takes_pictures(folder: Path) -> bool:
    """Return True if the model of a folder has a vision tower, of any family."""
    return (folder / CONFIG).is_file() and _has_tower(read_object(folder / CONFIG))


def processor_of(folder: Path) -> "PictureProcessor | None":
    """Return the picture processor of a model's folder, None for a text model. Raises UserError as PictureProcessor.of."""
    return PictureProcessor.of(folder) if takes_pictures(folder) else None


def limit_pixels(folder: Path, max_pixels: int) -> None:
    """Write a limit of pixels into preprocessor_config.json.

    Raises UserError as PictureProcessor.of does, and if no picture can be that small.
    """
    PictureProcessor.of(folder)
    limits = read_object(folder / PREPROCESSOR)
    least, _ = _least_and_most_pixels(limits)
    if max_pixels < least:
        raise UserError(
            f"model.max_pixels is {max_pixels}, and a picture of this model has {least} pixels at least: raise it to that."
        )
    if "size" in limits:
        limits["size"] = {**DEFAULT_SIZE, **limits["size"], "longest_edge": max_pixels}
    if "max_pixels" in limits or "size" not in limits:
        limits["max_pixels"] = max_pixels
    write_json(folder / PREPROCESSOR, limits)


class PictureProcessor:
    """Processor of pictures for one model."""

    def __init__(self, tokens: PictureTokens, limits: dict[str, Any]) -> None:
        """Set up the processor. `limits`: the content of preprocessor_config.json."""
        self.tokens = tokens
        self._limits = limits
        self._merge_size = int(limits["merge_size"])
        self._patch_size = int(limits["patch_size"])
        self._least, self._most = _least_and_most_pixels(limits)

    @classmethod
    def of(cls, folder: Path) -> "PictureProcessor":
        """Return the picture processor of a model's folder.

        Raises UserError for a text model, an unknown family, and settings of another image processor or of none.
        """
        config = read_object(folder / CONFIG)
        _require_known(folder, config)
        if not (folder / PREPROCESSOR).is_file():
            raise UserError(f"{folder} has no {PREPROCESSOR}: copy that of the model it comes from into it.")
        limits = read_object(folder / PREPROCESSOR)
        _require_agreement(folder, config["vision_config"], limits)
        if (fault := next(_faults(limits), None)) is not None:
            raise UserError(f"{folder / PREPROCESSOR}: {fault}: copy that of the model it comes from.")
        return cls(_tokens_of(folder, config), limits)

    @cached_property
    def _processor(self) -> "Qwen2VLImageProcessorPil":
        # Imported late: it imports all of transformers' models, which counting tokens does not need.
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        return Qwen2VLImageProcessorPil.from_dict(self._limits)

    def count(self, file: bytes) -> int:
        """Return the number of placeholders of a picture, from its header. Raises UserError if it is too long for its width."""
        from PIL import Image  # only for tasks with pictures

        try:
            with Image.open(io.BytesIO(file), formats=_READ) as picture:
                width, height = picture.size
        except Exception:  # noqa: BLE001  # untrusted content: Pillow raises errors of a dozen kinds on it
            raise UserError("it has a picture that is no PNG or JPEG file: leave it out, or correct it") from None
        if max(width, height) > MOST_ELONGATED * min(width, height):
            raise UserError(
                f"it has a picture of {width:,} x {height:,} pixels, and none may be more than {MOST_ELONGATED} times as long "
                "as wide: leave it out, or cut it"
            )
        side = self._patch_size * self._merge_size
        scaled_height, scaled_width = scaled(height, width, side, self._least, self._most)
        return (scaled_height // side) * (scaled_width // side)

    def patches(self, file: bytes) -> int:
        """Return the number of patches of a picture, from its header. Raises UserError as `count` does."""
        return self.count(file) * self._merge_size**2

    def expanded(self, token_ids: Sequence[int], files: Sequence[bytes]) -> tuple[int, ...]:
        """Return a prompt with as many placeholders as each picture takes, from one with one per picture.

        Raises UserError if the numbers of pictures and placeholders differ, or a placeholder is of a video.
        """
        expanded = image_tokens.with_lengths(token_ids, self.tokens, [self.count(file) for file in files])
        if expanded is None and self.tokens.video in token_ids:
            raise UserError(
                "its prompt has a placeholder for a video, but videos are not supported: correct the task's data"
            )
        if expanded is None:
            places = sum(token == self.tokens.image for token in token_ids)
            raise UserError(
                f"its prompt has places for {places} pictures, and it has {len(files)}: correct the task's data"
            )
        return expanded

    def collapsed(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return a prompt with one placeholder per picture, from one with a run of them."""
        return image_tokens.collapsed(token_ids, self.tokens)

    def pixels(self, file: bytes) -> Pixels:
        """Return a picture's pixels, scaled to the model's limits and normalised."""
        from PIL import Image

        with Image.open(io.BytesIO(file), formats=_READ) as picture:
            done = self._processor(picture.convert("RGB"), return_tensors="pt")
        return Pixels(pixel_values=done["pixel_values"], grid=done["image_grid_thw"][0])


def scaled(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Return the height and width to which the image processor scales a picture: multiples of `side`, within the limits in pixels.

    Equals `smart_resize` of transformers' image_processing_qwen2_vl.py, which takes seconds to import; a test compares them.
    """
    whole = round(height / side) * side, round(width / side) * side
    if whole[0] * whole[1] > most:
        factor = math.sqrt(height * width / most)
        return max(side, math.floor(height / factor / side) * side), max(side, math.floor(width / factor / side) * side)
    if whole[0] * whole[1] < least:
        factor = math.sqrt(least / (height * width))
        return math.ceil(height * factor / side) * side, math.ceil(width * factor / side) * side
    return whole


def _least_and_most_pixels(limits: dict[str, Any]) -> tuple[int, int]:
    """Return the smallest and largest number of pixels: min_pixels and max_pixels, or size where those are missing."""
    size = {**DEFAULT_SIZE, **(limits.get("size") or {})}
    least, most = limits.get("min_pixels"), limits.get("max_pixels")
    return int(size["shortest_edge"] if least is None else least), int(size["longest_edge"] if most is None else most)


def _has_tower(config: dict[str, Any]) -> bool:
    return isinstance(config.get("vision_config"), dict)


def _require_known(folder: Path, config: dict[str, Any]) -> None:
    family = config.get("model_type")
    if not _has_tower(config):
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
    """Raise UserError unless the processor cuts pictures as the tower expects."""
    for ours, theirs, default in (
        ("patch_size", "patch_size", None),
        ("merge_size", "spatial_merge_size", None),
        ("temporal_patch_size", "temporal_patch_size", 2),
    ):
        limit, actual = limits.get(ours, default), vision.get(theirs, default)
        if limit is None or limit != actual:
            raise UserError(
                f"{folder / PREPROCESSOR} has {ours} {limit}, and vision_config.{theirs} of {CONFIG} is {actual}: copy both files "
                "from one model."
            )


def _faults(limits: dict[str, Any]) -> Iterator[str]:
    """Yield settings that the image processor would fail on, or that silently change the number of tokens."""
    size = limits.get("size")
    if size is not None and (not isinstance(size, dict) or size.keys() != DEFAULT_SIZE.keys()):
        yield f"size is not {' and '.join(DEFAULT_SIZE)}"
        return
    pixels = {**DEFAULT_SIZE, **(size or {}), **{key: limits.get(key) for key in ("min_pixels", "max_pixels")}}
    if not all(value is None or type(value) is int for value in pixels.values()):
        yield "the smallest and the largest picture (min_pixels and max_pixels, or size) are not whole numbers"
        return
    least, most = _least_and_most_pixels(limits)
    if not 0 < least <= most:
        yield f"the smallest picture has {least} pixels, and the largest {most}"
    if not limits.get("do_resize", True):
        yield "do_resize is false, and pictures have to be scaled to whole tokens"
    for key in ("image_mean", "image_std"):
        if not isinstance(limits.get(key, []), list) or len(limits.get(key, "RGB")) != len("RGB"):
            yield f"{key} is not a number for each of red, green and blue"


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
