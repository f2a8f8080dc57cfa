"""What a session keeps of its turns: each token with what it was drawn from, also where the conversation forks."""

import asyncio
from array import array

import pytest
from tests.rollout.problems import example
from tests.rollout.scripted_chat import ScriptedChat, ids

from dagrpo.records import Completion
from dagrpo.rollout.session import Session, SessionLimits
from dagrpo.rollout.trajectory import Problem, TokenSample

MORE = ({"role": "user", "content": "more"},)
TURNS = ("ab", "c")  # a token is a character, and could have been the one after it


def _said(text: str) -> Completion:
    return Completion(
        token_ids=ids(text),
        logprobs=(-1.0,) * len(text),
        finish_reason="stop",
        support=tuple(array("i", [ord(each), ord(each) + 1]) for each in text),
    )


def _samples(*, rewrites: bool) -> tuple[TokenSample, ...]:
    """Of a session with two turns, the second after a user's words."""
    spoken = iter(TURNS)

    async def complete(prompt: tuple[int, ...], longest: int) -> Completion:
        return _said(next(spoken))

    chat, one = ScriptedChat(rewrites=rewrites), example()
    text, token_ids = chat.prompt(one.prompt, ())
    session = Session(
        problem=Problem(index=0, example=one, text=text, token_ids=token_ids),
        chat=chat,
        complete=complete,
        limits=SessionLimits(turns=2, tokens=1000, new_tokens=9),
        seed=0,
        name="x",
    )

    async def talk() -> None:
        await session.ask(MORE, await session.ask(one.prompt))

    asyncio.run(talk())
    return session.samples()


@pytest.mark.parametrize(("rewrites", "samples"), [(False, ["abc"]), (True, ["ab", "c"])])
def test_every_token_that_was_written_stands_beside_what_it_was_drawn_from(rewrites: bool, samples: list[str]) -> None:
    kept = _samples(rewrites=rewrites)
    assert ["".join(map(chr, sample.completion_ids)) for sample in kept] == samples
    for sample in kept:
        assert [list(each) for each in sample.support] == [[token, token + 1] for token in sample.completion_ids]
