"""Tiny vision-language models of both families with random weights, and pictures for them."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import PreTrainedModel

from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import Tower, Vision, tower_module

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
IMAGE, VIDEO, START, END = 50, 51, 52, 53
PATCH = 4  # two by two of them make a token: 8 by 8 pixels
TEXT: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
TOWER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "depth": 2,
    "out_hidden_size": 32,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
IDS: dict[str, int] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}


def _config(family: str) -> Any:
    if family == "qwen2_5_vl":
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
        tower = TOWER | {"fullatt_block_indexes": [1], "window_size": 4 * PATCH}
        return transformers.Qwen2_5_VLConfig(
            text_config=TEXT | {"rope_parameters": rope}, vision_config=tower, tie_word_embeddings=True, **IDS
        )
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    tower = TOWER | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    return transformers.Qwen3VLConfig(
        text_config=TEXT | {"rope_parameters": rope, "head_dim": 16},
        vision_config=tower,
        tie_word_embeddings=True,
        **IDS,
    )


def model_of(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Always the same; no bias is zero, and no factor of a norm is one."""
    torch.manual_seed(0)
    model = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config := _config(family))](config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    ready: PreTrainedModel = model.to(dtype).eval()
    return ready


def settings(folder: Path, family: str) -> Path:
    """A folder that says how pictures become pixels, of 16 tokens at most."""
    folder.mkdir(parents=True, exist_ok=True)
    _config(family).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "min_pixels": 64, "max_pixels": 16 * 64, "patch_size": PATCH, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "image_processor_type": "Qwen2VLImageProcessor",
    }))  # fmt: skip
    return folder


def policy_of(family: str, folder: Path, vision: Vision = "trained", *, shared: bool = False) -> Policy:
    """A policy in double whose tower is trained, or frozen."""
    model, frozen = model_of(family), vision == "frozen"
    module = tower_module(model)
    assert module is not None
    module.requires_grad_(not frozen)
    return Policy(model, Tower(model, settings(folder, family), frozen=frozen, shared=shared))


def picture(seed: int, width: int, height: int) -> bytes:
    """A PNG of noise. It takes width * height / 64 tokens where both are multiples of 8."""
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


SMALL, WIDE, TALL = picture(1, 16, 16), picture(2, 32, 16), picture(3, 16, 24)
TOKENS = {SMALL: 4, WIDE: 8, TALL: 6}


def prompt_with(files: Sequence[bytes], *text: int) -> list[int]:
    """A prompt that shows pictures, then text."""
    return [token for file in files for token in (START, *[IMAGE] * TOKENS[file], END)] + [*text]


ROWS: list[tuple[bytes, ...]] = [(SMALL,), (WIDE, TALL), (), (SMALL,), (TALL, WIDE)]
COMPLETIONS = [[7, 8, 2], [9, 2], [10, 11, 12, 2], [13, 2], [14, 15, 2]]


def sequences(rows: Sequence[int] = range(5)) -> TokenSequences:
    """Rows with one picture, two, none, the first again, and the two in the other order."""
    prompts = [prompt_with(ROWS[row], 5, 6 + row) for row in rows]
    completions = [COMPLETIONS[row] for row in rows]
    pairs = [*zip(prompts, completions, strict=True)]
    return TokenSequences.of(
        [[*prompt, *completion] for prompt, completion in pairs],
        [[False] * len(prompt) + [True] * len(completion) for prompt, completion in pairs],
        [ROWS[row] for row in rows],
    )
