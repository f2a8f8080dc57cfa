"""The real SGLang server with pictures, against transformers: the same logprobs, the same bits again, and nothing mixed up."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from tests.rollout.engine.pools import pool_over
from tests.rollout.problems import example
from tests.rollout.single_turns import single_turns
from transformers import AutoModelForImageTextToText

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.models.make import make_model
from dagrpo.models.pictures import PictureProcessor
from dagrpo.params.model import Fresh, Model, Vision
from dagrpo.params.rollout import Conversation
from dagrpo.params.runtime import Engine
from dagrpo.records import Completion, PromptPictures, SamplingRequest, ScoringRequest
from dagrpo.rollout.collect import collect
from dagrpo.rollout.engine.pool import ServerPool
from dagrpo.rollout.engine.server import SGLangServer
from dagrpo.rollout.prompts import Prompts
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.trajectory import Trajectory

pytestmark = pytest.mark.server
ENGINE = Engine(max_total_tokens=16_384, max_running_requests=64, request_timeout=120)
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


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
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


def test_logprobs_are_those_of_transformers_over_two_turns(seer: Seer, pool: ServerPool) -> None:
    requests = various(seer)
    completions = pool.generate(requests, lockstep=True)
    second = [then_asked(seer, *each) for each in zip(requests, completions, strict=True)]
    more = pool.generate(second, lockstep=True, first_wave=False)
    distances = map(seer.distance, requests + second, completions + more)
    assert max(distances) < CLOSE
    assert all(c.cached_tokens > len(r.input_ids) for r, c in zip(requests, more, strict=True)), "read twice"


def test_a_picture_in_the_cache_is_not_taken_for_another_with_the_same_words(seer: Seer, pool: ServerPool) -> None:
    for request in (seer.request(CAT, WORDS), seer.request(picture(2), WORDS), seer.request(CAT, WORDS, seed=9)):
        (completion,) = pool.generate([request], lockstep=False)
        assert seer.distance(request, completion) < CLOSE


def many(seer: Seer) -> list[SamplingRequest]:
    """Four samples of each of 12 pictures, of different sizes."""
    return [
        seer.request(picture(number, 60 + 10 * number, 80), (20 + number,), seed=10 * number + sample)
        for number in range(12)
        for sample in range(4)
    ]


def test_a_lockstep_batch_has_the_same_bits_again(seer: Seer, pool: ServerPool) -> None:
    first = pool.generate(many(seer), lockstep=True)
    pool.generate(various(seer), lockstep=True)
    assert pool.generate(many(seer), lockstep=True) == first


@pytest.mark.parametrize("seer", ["qwen2_5_vl"], indirect=True)
def test_another_server_gives_the_same_bits(seer: Seer, pool: ServerPool, tmp_path: Path) -> None:
    with (
        SGLangServer(seer.folder, ENGINE, tmp_path / "server.log") as server,
        pool_over([server.endpoint], seer.folder) as other,
    ):
        assert other.generate(many(seer), lockstep=True) == pool.generate(many(seer), lockstep=True)


def test_prompts_longer_than_a_chunk_are_cut_within_pictures(seer: Seer, pool: ServerPool) -> None:
    """SGLang reads 4096 tokens at a time."""
    requests = [seer.request(*[picture(n + 7 * k, 224, 224) for k in range(24)], (n,)) for n in range(4)]
    assert sum(len(request.input_ids) for request in requests) > 6000
    completions = pool.generate(requests, lockstep=True)
    assert max(map(seer.distance, requests, completions)) < CLOSE


def test_a_policy_that_writes_placeholders_is_cut_before_them_and_goes_on(seer: Seer, pool: ServerPool) -> None:
    """With a placeholder in a prompt that stands for no picture, SGLang would never answer the second turn."""
    requests = [seer.request(CAT, (number,), seed=number, temperature=50.0) for number in range(10, 74)]
    completions = pool.generate(requests, lockstep=True)
    placeholders = set(seer.pictures.tokens.unwritten)
    cut = [completion for completion in completions if len(completion.token_ids) < 16]
    assert any(completion.finish_reason == "length" for completion in cut), "none has written one: use other seeds"
    assert placeholders.isdisjoint(token for completion in completions for token in completion.token_ids)
    second = [then_asked(seer, *each) for each in zip(requests, completions, strict=True)]
    assert len(pool.generate(second, lockstep=True, first_wave=False)) == len(second)


def test_marks_of_pictures_that_a_policy_writes_show_none(seer: Seer, pool: ServerPool) -> None:
    tokens = seer.pictures.tokens
    plain = seer.request(CAT, WORDS)
    request = replace(plain, input_ids=(*plain.input_ids, tokens.start, 20, tokens.end, tokens.end, *WORDS))
    (completion,) = pool.generate([request], lockstep=True)
    assert seer.distance(request, completion) < CLOSE


def test_scores_of_what_follows_pictures_are_those_of_transformers(seer: Seer, pool: ServerPool) -> None:
    requests = [
        ScoringRequest(token_ids=(*each.input_ids, 30, 31, 32), first=len(each.input_ids), pictures=each.pictures)
        for each in various(seer)
    ]
    for request, scores in zip(requests, pool.score(requests, lockstep=True), strict=True):
        assert request.pictures is not None
        ours = seer.logprobs(request.token_ids, request.pictures.files)[-3:]
        assert torch.allclose(ours, torch.tensor(scores), atol=CLOSE)


def converse(seer: Seer, pool: ServerPool, *, lockstep: bool) -> list[Trajectory]:
    """Two attempts at each of three problems, with a user who asks again until there are two answers."""
    tokenizer = load_tokenizer(seer.folder)
    prompts = Prompts(tokenizer, Conversation(), seer.pictures)
    shown = [("<image> What is it?", (CAT,)), ("<image>, then <image>?", (DOG, CAT)), ("No picture.", ())]
    problems = [
        prompts.problem(index, example(question, images=files, interaction="tests.rollout.agents.users:TWO"))
        for index, (question, files) in enumerate(shown)
    ]
    sampling = Sampling(samples=2, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=12, lockstep=lockstep)
    with single_turns(tokenizer, max_new_tokens=12) as agent:
        return collect(problems, sampling, lambda position, sample: 10 * position + sample, engine=pool, agent=agent)


@pytest.mark.parametrize("lockstep", [True, False])
def test_conversations_show_their_pictures_at_every_turn(seer: Seer, pool: ServerPool, lockstep: bool) -> None:
    trajectories = converse(seer, pool, lockstep=lockstep)
    assert {trajectory.turns for trajectory in trajectories} == {2}
    for trajectory in trajectories:
        for sample in trajectory.samples:
            ours = seer.logprobs(sample.token_ids, trajectory.problem.picture_files)
            written = torch.tensor(sample.loss_mask[1:])
            assert torch.allclose(ours[written], torch.tensor(sample.completion_logprobs), atol=CLOSE)
    if lockstep:
        again = converse(seer, pool, lockstep=True)
        assert [each.samples for each in again] == [each.samples for each in trajectories]


def test_new_weights_of_both_towers_are_those_that_sample(seer: Seer, pool: ServerPool) -> None:
    """The last of the module: the server keeps these weights."""
    requests = various(seer)
    before = pool.generate(requests, lockstep=True)
    move_weights(seer.folder, seed=2)
    pool.load(StateTensors(load_file(seer.folder / "model.safetensors")), "step_1")
    moved = Seer(seer.folder)
    completions = pool.generate(requests, lockstep=True)
    assert max(map(moved.distance, requests, completions)) < CLOSE
    assert min(map(moved.distance, requests, before)) > 0.01
