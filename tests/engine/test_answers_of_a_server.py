"""What the real SGLang server answers: the same again, as transformers computes it, and with the weights that it was given."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.batches import batch, trainer_logprobs
from transformers import AutoModelForCausalLM

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.server import SGLangServer

STOP = 1  # of the tiny model


@contextmanager
def a_busy_machine() -> Iterator[None]:
    """Every core taken, twice over."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


@pytest.mark.server
def test_a_lockstep_batch_repeats_to_the_bit(pool: ServerPool, tiny_model: Path) -> None:
    requests = batch()
    first = pool.generate(requests, lockstep=True)
    assert pool.generate(requests, lockstep=True) == first, "again"
    pool.generate(batch(prompts=5, max_new_tokens=40), lockstep=False)
    assert pool.generate(requests, lockstep=True) == first, "after other requests"
    pool.load(HuggingFaceTensors(tiny_model), "first")
    assert pool.generate(requests, lockstep=True) == first, "after an update to the same weights"


@pytest.mark.nightly
@pytest.mark.server
def test_a_lockstep_batch_is_the_same_on_a_busy_machine(pool: ServerPool) -> None:
    first = pool.generate(batch(), lockstep=True)
    with a_busy_machine():
        assert pool.generate(batch(), lockstep=True) == first


@pytest.mark.server
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_transformers(pool: ServerPool, tiny_model: Path, temperature: float) -> None:
    requests = batch(prompts=16, samples=2, temperature=temperature)
    completions = pool.generate(requests, lockstep=True)
    sampled = [value for completion in completions for value in completion.logprobs]
    if temperature == 0:
        requests = batch(prompts=16, samples=2, temperature=1.0)
    torch.testing.assert_close(
        torch.tensor(sampled), torch.tensor(trainer_logprobs(tiny_model, requests, completions)), atol=1e-4, rtol=0
    )


@pytest.mark.server
def test_scores_are_the_logprobs_of_transformers_and_repeat_to_the_bit(pool: ServerPool, tiny_model: Path) -> None:
    """Several continuations of each prompt, and one sequence from its second token on, the vocabulary's last among them."""
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    rng = random.Random(1)
    requests = [
        ScoringRequest(
            token_ids=(*each.input_ids, *(rng.randrange(2, 100) for _ in range(rng.randrange(1, 12)))),
            first=len(each.input_ids),
        )
        for each in batch(prompts=8, samples=3)
    ]
    requests.append(ScoringRequest(token_ids=(5, policy.config.vocab_size - 1, 7), first=1))
    scores = pool.score(requests, lockstep=True)
    pool.generate(batch(prompts=5), lockstep=False)
    assert pool.score(requests, lockstep=True) == scores, "after other requests"
    for request, told in zip(requests, scores, strict=True):
        ids = torch.tensor([request.token_ids])
        with torch.no_grad():
            table = torch.log_softmax(policy(ids).logits[0, request.first - 1 : -1], dim=-1)
        expected = table.gather(1, ids[0, request.first :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(told), expected, atol=1e-4, rtol=0)


@pytest.mark.server
def test_logprobs_of_what_top_p_and_top_k_leave_are_those_of_transformers_over_the_support(
    pool: ServerPool, tiny_model: Path
) -> None:
    requests = [
        replace(each, top_p=0.5, top_k=12, temperature=0.7, support=True) for each in batch(prompts=8, samples=2)
    ]
    completions = pool.generate(requests, lockstep=True)
    assert pool.generate(requests, lockstep=True) == completions, "again"
    sizes = [len(ids) for completion in completions for ids in completion.support]
    assert 1 < max(sizes) <= 12
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for request, completion in zip(requests, completions, strict=True):
        with torch.no_grad():
            logits = policy(torch.tensor([[*request.input_ids, *completion.token_ids]])).logits[0]
        for place, (token, ids) in enumerate(zip(completion.token_ids, completion.support, strict=True)):
            scaled = logits[len(request.input_ids) - 1 + place] / 0.7
            left = torch.tensor(list(ids))
            likeliest = scaled.softmax(-1).sort(descending=True).values
            assert scaled.softmax(-1)[left].sum() == pytest.approx(float(likeliest[: len(ids)].sum()), abs=1e-5)
            assert likeliest[: len(ids) - 1].sum() < 0.5 + 1e-5
            assert len(ids) == 12 or likeliest[: len(ids)].sum() > 0.5 - 1e-5
            own = float(torch.log_softmax(scaled[left], -1)[ids.index(token)])
            assert completion.logprobs[place] == pytest.approx(own, abs=1e-4)


@pytest.mark.nightly
@pytest.mark.server
def test_a_completion_ends_with_the_stop_token_or_at_its_length(pool: ServerPool) -> None:
    completions = pool.generate(batch(max_new_tokens=60), lockstep=True)
    reasons = {"stop": 0, "length": 0}
    for completion in completions:
        reasons[completion.finish_reason] += 1
        assert STOP not in completion.token_ids[:-1]
        assert (completion.token_ids[-1] == STOP) == (completion.finish_reason == "stop")
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 60
    assert min(reasons.values()) > 10


@pytest.mark.server
def test_greedy_needs_no_seed_and_a_seed_decides_a_sample(pool: ServerPool) -> None:
    greedy = pool.generate(batch(prompts=4, samples=3, temperature=0.0), lockstep=True)
    sampled = pool.generate(batch(prompts=4, samples=3), lockstep=True)
    for first in range(0, 12, 3):
        assert len({completion.token_ids for completion in greedy[first : first + 3]}) == 1
        assert len({completion.token_ids for completion in sampled[first : first + 3]}) == 3


@pytest.mark.server
def test_other_weights_are_taken_over_and_named_in_the_answers(
    pool: ServerPool, tiny_model: Path, tmp_path: Path
) -> None:
    requests = batch(prompts=4)
    before = pool.generate(requests, lockstep=True)
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    weights = {name: tensor * 1.01 for name, tensor in load_file(tiny_model / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    pool.load(StateTensors(weights), "step_1")
    after = pool.generate(requests, lockstep=True)
    trained = torch.tensor(trainer_logprobs(tmp_path, requests, after))
    torch.testing.assert_close(
        torch.tensor([value for completion in after for value in completion.logprobs]), trained, atol=1e-4, rtol=0
    )
    assert after != before
    pool.load(HuggingFaceTensors(tiny_model), "first")
    assert pool.generate(requests, lockstep=True) == before


@pytest.mark.server
def test_a_folder_without_weights_is_refused_and_the_old_ones_stay(
    server: SGLangServer, pool: ServerPool, tmp_path: Path
) -> None:
    before = pool.generate(batch(prompts=2), lockstep=True)
    client = ServerClient(server.endpoint, 120)
    with BackgroundLoop() as loop, pytest.raises(ServerError, match="refused /update_weights_from_disk"):
        loop.run(client.load(tmp_path, WeightVersion(name="broken", sent="broken")))
    assert pool.generate(batch(prompts=2), lockstep=True) == before


@pytest.mark.server
def test_single_completions_are_nearly_those_of_a_batch(pool: ServerPool) -> None:
    requests = batch(prompts=8, samples=4)

    async def one_by_one() -> list[Completion]:
        return await asyncio.gather(*(pool.complete(each, session="one") for each in requests))

    assert asyncio.run(pool.complete(replace(requests[0], max_new_tokens=0), session="one")).token_ids == ()
    expected = pool.generate(requests, lockstep=True)
    same = [a for a, b in zip(expected, asyncio.run(one_by_one()), strict=True) if a.token_ids == b.token_ids]
    assert len(same) >= 0.98 * len(requests)


@pytest.mark.server
def test_a_prompt_that_does_not_fit_is_refused_with_its_length(pool: ServerPool) -> None:
    request = SamplingRequest(input_ids=(5,) * 300, seed=0, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=4)
    with pytest.raises(ServerError, match="300 tokens"):
        pool.generate([request], lockstep=True)
