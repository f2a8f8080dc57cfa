"""The real SGLang server computes nothing more for requests that were aborted; conversations of several turns repeat to the bit."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import httpx
import pytest
from tests.engine.batches import batch
from tests.engine.pools import pool_over
from tests.rollout.problems import task_row
from tests.rollout.single_turns import single_turns

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.trajectory import Prompt, TokenSample, Trajectory
from dagrpo.core.types import ABORTED, SamplingRequest, ScoringRequest
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import Aborted
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.collect import collect
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.early_stop import continued, followed, kept
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.rollout.sampling import Sampling

pytestmark = pytest.mark.server

SAMPLES = 8
LONGEST = 220  # tokens, near the most that the model takes


def at_work(endpoint: Endpoint) -> int:
    """How many requests the server computes, or has yet to compute."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    answer = httpx.get(f"{endpoint.address}/v1/loads", headers=headers, trust_env=False).raise_for_status()
    return sum(each["num_running_reqs"] + each["num_waiting_reqs"] for each in answer.json()["loads"])


async def _until_at_work(endpoint: Endpoint) -> None:
    deadline = time.monotonic() + 20
    while await asyncio.to_thread(at_work, endpoint) == 0:
        assert time.monotonic() < deadline, "the server was asked for nothing"


def test_no_request_is_left_at_a_server_all_of_whose_requests_were_aborted(
    server: SGLangServer, pool: ServerPool, tiny_model: Path
) -> None:
    requests = [replace(each, max_new_tokens=LONGEST) for each in batch(prompts=6, samples=SAMPLES)]

    async def ask() -> int:
        works = [
            asyncio.ensure_future(pool.complete(each, str(place // SAMPLES), abortable=True))
            for place, each in enumerate(requests)
        ]
        await _until_at_work(server.endpoint)
        for work in works:
            work.cancel()
        await pool.abort([str(group) for group in range(6)])
        return await asyncio.to_thread(at_work, server.endpoint)

    assert asyncio.run(ask()) == 0
    pool.load(HuggingFaceTensors(tiny_model), "first")
    assert len(pool.generate(batch(prompts=1), lockstep=True)) == SAMPLES, "it takes weights, and samples, as before"


def _parts(server: SGLangServer, pool: ServerPool, requests: Sequence[SamplingRequest]) -> list[Aborted]:
    """Return requests that were aborted after at least two tokens, with these."""

    async def ask(polls: int) -> list[Aborted]:
        works = [asyncio.ensure_future(pool.complete(each, "0", abortable=True)) for each in requests]
        await _until_at_work(server.endpoint)
        for _ in range(polls):
            await asyncio.to_thread(at_work, server.endpoint)
        aborted = await pool.abort(["0"])
        await asyncio.gather(*works, return_exceptions=True)
        return aborted

    found = (each for polls in range(12) for each in asyncio.run(ask(polls)))
    usable = (each for each in found if each.completion.finish_reason == ABORTED and len(each.completion.token_ids) > 1)
    parts = [*islice(usable, SAMPLES)]
    assert parts, "all were aborted while they waited, or had ended"
    return parts


def test_what_was_aborted_goes_on_from_its_tokens_with_those_that_it_would_have_had(
    server: SGLangServer, pool: ServerPool
) -> None:
    """The last token of a part is sampled again: it may be the end that the server did not come to see."""
    parts = _parts(server, pool, [replace(each, max_new_tokens=LONGEST) for each in batch(prompts=4, samples=2)])
    whole = pool.generate([each.request for each in parts], lockstep=False)
    rest = pool.generate([continued(each.request, kept(each.completion)) for each in parts], lockstep=False)
    joined = [followed(kept(part.completion), end) for part, end in zip(parts, rest, strict=True)]
    same = [one.token_ids == other.token_ids for one, other in zip(joined, whole, strict=True)]
    assert sum(same) >= len(same) - 2, "up to rounding"
    one, other = next(pair for pair, is_same in zip(zip(joined, whole, strict=True), same, strict=True) if is_same)
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert one.finish_reason == other.finish_reason


def test_an_aborted_answer_continued_by_other_weights_says_which_tokens_are_of_which(
    server: SGLangServer, pool: ServerPool, tiny_model: Path
) -> None:
    """Each part has the logprobs that its weights give, and not those of the others."""
    parts = _parts(server, pool, [replace(each, max_new_tokens=LONGEST) for each in batch(prompts=4, samples=2)])
    first = HuggingFaceTensors(tiny_model)
    second = StateTensors({name: 0.9 * first.read(name) for name in first.specs})
    pool.load(second, "second")
    rest = pool.generate([continued(each.request, kept(each.completion)) for each in parts], lockstep=False)
    joined = [followed(kept(part.completion), end) for part, end in zip(parts, rest, strict=True)]
    wanted = [
        ScoringRequest(token_ids=part.request.input_ids + each.token_ids, first=len(part.request.input_ids))
        for part, each in zip(parts, joined, strict=True)
    ]
    of_second = pool.score(wanted, lockstep=False)
    pool.load(first, "first")
    of_first = pool.score(wanted, lockstep=False)
    for one, old, new in zip(joined, of_first, of_second, strict=True):
        ((version, count),) = one.earlier
        assert (version, one.weight_version) == ("first", "second")
        assert 0 < count < len(one.token_ids)
        assert one.logprobs == pytest.approx(old[:count] + new[count:], abs=1e-4)
        assert one.logprobs != pytest.approx(old, abs=1e-2)
        assert one.logprobs != pytest.approx(new, abs=1e-2)


TOKENIZER = character_tokenizer(256)
SAMPLING = Sampling(samples=4, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=12, lockstep=True)


@pytest.fixture(scope="module")
def opened(fresh_server: SGLangServer, fresh_model: Path) -> Iterator[ServerPool]:
    with pool_over([fresh_server.endpoint], fresh_model, keeps_all=True) as pool:
        pool.load(HuggingFaceTensors(fresh_model), "first")
        yield pool


def problems() -> list[Prompt]:
    """Five of them, with a user who asks again until there are one, two or three answers."""
    prompts = PromptRenderer(TOKENIZER, Conversation())
    users = ["ONE", "TWO", "STUBBORN", "TWO", "ONE"]
    return [
        prompts.prompt(index, task_row(f"{index}+2=?", interaction=f"tests.rollout.agents.users:{user}"))
        for index, user in enumerate(users)
    ]


def converse(engine: ServerPool, sampling: Sampling = SAMPLING) -> list[Trajectory]:
    with single_turns(TOKENIZER, max_new_tokens=12) as agent:
        return collect(
            problems(), sampling, lambda position, sample: 10 * position + sample, engine=engine, agent=agent
        )


def samples(trajectories: list[Trajectory]) -> list[TokenSample]:
    return [sample for trajectory in trajectories for sample in trajectory.samples]


def test_waves_that_shrink_give_the_same_tokens_and_logprobs_twice_and_after_new_weights(
    opened: ServerPool, fresh_model: Path
) -> None:
    first = converse(opened)
    assert sorted({trajectory.turns for trajectory in first}) == [1, 2, 3]
    assert samples(converse(opened)) == samples(first)
    opened.load(HuggingFaceTensors(fresh_model), "the same again")
    again = samples(converse(opened))
    assert [sample.logprobs for sample in again] == [sample.logprobs for sample in samples(first)]


def test_a_later_turn_finds_all_earlier_tokens_but_the_last_in_the_cache(opened: ServerPool) -> None:
    found = 0
    for trajectory in converse(opened):
        if trajectory.turns == 2 and len(trajectory.samples) == 1:
            (sample,) = trajectory.samples
            own = [place for place, mask in enumerate(sample.loss_mask) if mask]
            end_of_first_turn = next(one for one, other in itertools.pairwise(own) if other != one + 1)
            assert trajectory.cached_tokens >= end_of_first_turn
            found += 1
    assert found


def test_free_running_conversations_stay_close_to_those_in_waves(opened: ServerPool) -> None:
    waves = samples(converse(opened))
    free = samples(converse(opened, replace(SAMPLING, lockstep=False)))
    assert [sample.token_ids for sample in free] == [sample.token_ids for sample in waves]
    for one, other in zip(waves, free, strict=True):
        assert list(one.logprobs) == pytest.approx(list(other.logprobs), abs=1e-4)
