"""What a session keeps of its turns: each token with what it was drawn from, also where the conversation forks."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.rollout.problems import task_row
from tests.rollout.scripted_chat import PICTURE, ScriptedChat, ids, text_of

from dagrpo.chat.renderers import Message, ParsedAnswer, ToolSchema
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt, TokenSample
from dagrpo.core.types import Completion, PictureTokens, PromptPictures
from dagrpo.rollout.session import Session, SessionLimits, answer_of, trajectory_of
from dagrpo_answers.own_text import answer_text

MORE = ({"role": "user", "content": "more"},)
CAT_AND_DOG = PromptPictures(
    files=(b"cat", b"dog"), tokens=PictureTokens(image=ord(PICTURE), video=5, start=ord("["), end=ord("]"))
)
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

    chat, one = ScriptedChat(rewrites=rewrites), task_row()
    text, token_ids = chat.prompt(one.prompt, ())
    session = Session(
        prompt=Prompt(index=0, row=one, text=text, token_ids=token_ids),
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


class OpeningChat(ScriptedChat):
    """A chat format whose prompts open a thought."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        text = super().prompt(messages, tools)[0] + self.mark
        return text, ids(text)

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        return replace(super().parse(prompt, completion, tools), is_whole=True)


@pytest.mark.parametrize(
    ("mark", "closing"),
    [
        ("<think>\n", "</think>"),
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ],
)
@pytest.mark.parametrize(
    ("said", "answer"),
    [("It is 9.", ""), ("It is 9.{} It is 8.", " It is 8."), ("", ""), ("It is 9, \\boxed{{9}}", "")],
)
def test_a_thought_that_the_prompt_opened_is_no_answer_also_if_it_is_cut_off(
    mark: str, closing: str, said: str, answer: str
) -> None:
    async def complete(prompt: tuple[int, ...], longest: int) -> Completion:
        return _said(said.format(closing))

    chat, one = OpeningChat(mark), task_row()
    text, token_ids = chat.prompt(one.prompt, ())
    problem = Prompt(index=0, row=one, text=text, token_ids=token_ids)
    limits = SessionLimits(turns=1, tokens=1000, new_tokens=99)
    session = Session(prompt=problem, chat=chat, complete=complete, limits=limits, seed=0, name="x")
    turn = asyncio.run(session.ask(one.prompt))
    assert answer_text(answer_of(session, turn)) == answer, "a user does not hear the thought"
    assert answer_text(trajectory_of(session, 0, stop_reason="answered").text) == answer


def _prompts(chat: ScriptedChat, first: Sequence[Message], then: Sequence[Message]) -> list[str]:
    """What the policy is asked to continue at a problem with two pictures, of two tokens and of three."""
    asked: list[str] = []

    async def complete(prompt: tuple[int, ...], longest: int) -> Completion:
        asked.append(text_of(prompt))
        return _said("<image>")

    one = task_row("[<image>] or [<image>]?", images=CAT_AND_DOG.files)
    problem = Prompt(index=0, row=one, text="", token_ids=ids(SHOWN), pictures=CAT_AND_DOG)
    session = Session(
        prompt=problem,
        chat=chat,
        complete=complete,
        limits=SessionLimits(turns=2, tokens=1000, new_tokens=9),
        seed=0,
        name="x",
    )

    async def talk() -> None:
        await session.ask(then, await session.ask(first or one.prompt))

    asyncio.run(talk())
    return asked


SHOWN = f"<user>[{PICTURE * 2}] or [{PICTURE * 3}]?\x03<assistant>"


def test_a_later_turn_shows_the_pictures_where_they_were() -> None:
    asked = _prompts(ScriptedChat(), (), MORE)
    assert asked == [SHOWN, SHOWN + "<image>\x03<user>more\x03<assistant>"]


def test_a_conversation_rendered_afresh_shows_the_pictures_of_its_problem_and_no_others() -> None:
    """What the policy or a user says may spell `<image>`, and is a text like any other."""
    asked = _prompts(ScriptedChat(rewrites=True), (), ({"role": "user", "content": "<image>?"},))
    assert asked[1] == SHOWN + "<image>\x03<user><image>?\x03<assistant>"


def test_a_partner_that_says_something_first_leaves_the_pictures_in_their_places() -> None:
    said = ({"role": "user", "content": "[<image>] or [<image>]? Begin."},)
    assert _prompts(ScriptedChat(), said, MORE)[0] == SHOWN.replace("?", "? Begin.")


def test_a_conversation_without_the_pictures_of_its_problem_is_refused() -> None:
    with pytest.raises(UserError, match="does not show exactly the 2 pictures of the problem"):
        _prompts(ScriptedChat(), ({"role": "user", "content": "[<image>]?"},), MORE)
