"""Fresh vision-language models as transformers runs them, beside a real SGLang server of each.

A module of tests imports `seer` and `pool`, and each of its tests runs for every family.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from tests.engine.pools import pool_over
from transformers import AutoModelForImageTextToText

from dagrpo.core.types import Completion, PromptPictures, SamplingRequest
from dagrpo.engine import sglang
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.make import make_model
from dagrpo.models.pictures import PictureProcessor

ENGINE = sglang.Config(max_total_tokens=16_384, max_running_requests=64, request_timeout=120)
CLOSE = 5e-5  # between two programs that round differently; a wrong position or a wrong picture is beyond 0.01
WORDS = (10, 11, 12)
Part = bytes | tuple[int, ...]


def picture(number: int, width: int = 100, height: int = 70) -> bytes:
    image = Image.new("RGB", (width, height), (37 * number % 256, 91 * number % 256, 200))
    ImageDraw.Draw(image).ellipse((5 * number, 5, 5 * number + 40, 50), fill=(255, 20 * number % 256, 0))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


CAT, DOG = picture(1), picture(4, 70, 120)


class Seer:
    """A model as transformers runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pictures = PictureProcessor.of(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    def request(self, *parts: Part, seed: int = 0, temperature: float = 1.0) -> SamplingRequest:
        """Up to 16 tokens after pictures and words, in the order given."""
        tokens = self.pictures.tokens
        files = tuple(part for part in parts if isinstance(part, bytes))
        shown = (tokens.start, tokens.image, tokens.end)
        ids = [token for part in parts for token in (shown if isinstance(part, bytes) else part)]
        return SamplingRequest(
            input_ids=self.pictures.expanded(ids, files), seed=seed, temperature=temperature, top_p=1.0, top_k=-1,
            max_new_tokens=16, pictures=PromptPictures(files=files, tokens=tokens),
        )  # fmt: skip

    def logprobs(self, token_ids: Sequence[int], files: Sequence[bytes]) -> torch.Tensor:
        """[tokens - 1]: each token's after those before it."""
        ids = torch.tensor([token_ids])
        seen: dict[str, Any] = {"mm_token_type_ids": (ids == self.pictures.tokens.image).int()}
        if files:
            pixels = [self.pictures.pixels(file) for file in files]
            seen["pixel_values"] = torch.cat([each.pixel_values for each in pixels])
            seen["image_grid_thw"] = torch.stack([each.grid for each in pixels])
        with torch.no_grad():
            logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **seen).logits[0, :-1]
        logprobs: torch.Tensor = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        return logprobs

    def distance(self, request: SamplingRequest, completion: Completion) -> float:
        """The largest difference of a completion's logprobs to the engine's."""
        assert request.pictures is not None
        assert completion.token_ids
        ours = self.logprobs(request.input_ids + completion.token_ids, request.pictures.files)
        theirs = torch.tensor(completion.logprobs)
        return float((ours[-len(theirs) :] - theirs).abs().max())


def make_seer(family: Any, folder: Path) -> Seer:
    """Of a fresh model: every weight is moved, since one that is 0 or 1 could be misnamed without anybody noticing."""
    vision = Vision(family=family, depth=2, hidden_size=32, intermediate_size=64, num_heads=2)
    shape = Fresh(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, max_position_embeddings=2048,
        vision=vision,
    )  # fmt: skip
    make_model(folder, Model(fresh=shape))
    move_weights(folder, seed=1)
    return Seer(folder)


def move_weights(folder: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    state = load_file(folder / "model.safetensors")
    moved = {name: tensor + torch.randn(tensor.shape, generator=generator) * 0.1 for name, tensor in state.items()}
    save_file(moved, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module", params=["qwen2_5_vl", pytest.param("qwen3_vl", marks=pytest.mark.nightly)])
def seer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seer:
    return make_seer(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture(scope="module")
def pool(seer: Seer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with SGLangServer(seer.folder, ENGINE, log) as server, pool_over([server.endpoint], seer.folder) as opened:
        yield opened


def various(seer: Seer) -> list[SamplingRequest]:
    """No picture, one, another with the same words, two, the same two the other way round, and a prompt that is there twice."""
    return [
        seer.request(WORDS),
        seer.request(CAT, WORDS),
        seer.request(DOG, WORDS, seed=1),
        seer.request(CAT, WORDS, DOG, WORDS, seed=2),
        seer.request(DOG, WORDS, CAT, WORDS, seed=3),
        seer.request(CAT, WORDS, seed=4),
    ]


def then_asked(seer: Seer, request: SamplingRequest, completion: Completion) -> SamplingRequest:
    """The turn after it, with the same pictures."""
    return replace(request, input_ids=request.input_ids + completion.token_ids + WORDS, seed=request.seed + 100)
