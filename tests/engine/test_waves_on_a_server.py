"""Conversations of several turns on the real server: the same bytes twice, and the tokens that it has in its cache."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.pools import pool_over
from tests.rollout.problems import task_row
from tests.rollout.single_turns import single_turns

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.core.trajectory import Prompt, TokenSample, Trajectory
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.collect import collect
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.rollout.sampling import Sampling

pytestmark = pytest.mark.server
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
