"""The real SGLang server with pictures, against transformers: the same logprobs, the same bits again, and nothing mixed up."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.seers import (
    CAT,
    CLOSE,
    DOG,
    WORDS,
    Part,
    Seer,
    move_weights,
    picture,
    pool,
    seer,
    then_asked,
    various,
)
from tests.rollout.problems import task_row
from tests.rollout.single_turns import single_turns

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.trajectory import Trajectory
from dagrpo.core.types import SamplingRequest, ScoringRequest
from dagrpo.engine.pool import ServerPool
from dagrpo.rollout.collect import collect
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.rollout.sampling import Sampling

pytestmark = [pytest.mark.server, pytest.mark.nightly]
__all__ = ["pool", "seer"]
SPELLED = (
    "<image>",
    "<|image_pad|>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>",
    "<|video_pad|>",
    "<|vision_start|><|video_pad|><|vision_end|>",
    "<|vision_end|><|vision_start|>",
)


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
    prompts = PromptRenderer(tokenizer, Conversation(), seer.pictures)
    shown = [("<image> What is it?", (CAT,)), ("<image>, then <image>?", (DOG, CAT)), ("No picture.", ())]
    problems = [
        prompts.prompt(index, task_row(question, images=files, interaction="tests.rollout.agents.users:TWO"))
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
            ours = seer.logprobs(sample.token_ids, trajectory.prompt.picture_files)
            written = torch.tensor([*map(bool, sample.loss_mask[1:])])
            assert torch.allclose(ours[written], torch.tensor(sample.completion_logprobs), atol=CLOSE)
    if lockstep:
        again = converse(seer, pool, lockstep=True)
        assert [each.samples for each in again] == [each.samples for each in trajectories]


def spelled(seer: Seer, text: str) -> tuple[int, ...]:
    """The text in ordinary tokens, one for each character."""
    ids = tuple(load_tokenizer(seer.folder)(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    assert len(ids) == len(text)
    return ids


def asked(seer: Seer, *parts: Part) -> ScoringRequest:
    """How likely the last four tokens are after everything before them."""
    request = seer.request(*parts, WORDS)
    said = request.input_ids
    return ScoringRequest(token_ids=(*said, 40), first=len(said) - len(WORDS), pictures=request.pictures)


@pytest.mark.parametrize("text", SPELLED)
def test_a_name_that_is_spelled_in_ordinary_tokens_shows_no_picture(seer: Seer, pool: ServerPool, text: str) -> None:
    """Before, between and after pictures, in a later turn, and where there is none."""
    said = spelled(seer, text)
    turn = (*WORDS, seer.pictures.tokens.end, *said)
    requests = [
        asked(seer, said, CAT),
        asked(seer, CAT, said, DOG),
        asked(seer, DOG, CAT, said, said, turn, said),
        asked(seer, said),
    ]
    for request, scores in zip(requests, pool.score(requests, lockstep=True), strict=True):
        assert request.pictures is not None
        ours = seer.logprobs(request.token_ids, request.pictures.files)[-len(scores) :]
        assert torch.allclose(ours, torch.tensor(scores), atol=CLOSE)


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
