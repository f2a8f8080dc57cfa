"""What a session keeps of its turns: each token with what it was drawn from, also where the conversation forks."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.rollout.problems import task_row
from tests.rollout.scripted_chat import PICTURE, ScriptedChat, ids, text_of

from dagrpo.chat.renderers import Message, ParsedAnswer, ToolSchema
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
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


def _session(
    chat: ScriptedChat,
    said: Callable[[tuple[int, ...]], str],
    question: str = "1+2=?",
    pictures: PromptPictures | None = None,
    turns: int = 2,
) -> Session:
    """A session whose policy says `said` to a prompt."""

    async def complete(prompt: tuple[int, ...], longest: int) -> Completion:
        return _said(said(prompt))

    one = task_row(question, images=pictures.files if pictures else ())
    text, token_ids = ("", ids(SHOWN)) if pictures else chat.prompt(one.prompt, ())
    return Session(
        prompt=Prompt(index=0, row=one, text=text, token_ids=token_ids, pictures=pictures),
        chat=chat,
        complete=complete,
        limits=SessionLimits(turns=turns, tokens=1000, new_tokens=99),
        seed=0,
        name="x",
    )


async def _talk(session: Session, then: Sequence[Message], first: Sequence[Message] = ()) -> None:
    await session.ask(then, await session.ask(first or session.prompt.row.prompt))


@pytest.mark.parametrize(("rewrites", "samples"), [(False, ["abc"]), (True, ["ab", "c"])])
def test_every_token_that_was_written_stands_beside_what_it_was_drawn_from(rewrites: bool, samples: list[str]) -> None:
    spoken = iter(TURNS)
    session = _session(ScriptedChat(rewrites=rewrites), lambda prompt: next(spoken))
    asyncio.run(_talk(session, MORE))
    kept = session.samples()
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
    session = _session(OpeningChat(mark), lambda prompt: said.format(closing), turns=1)
    turn = asyncio.run(session.ask(session.prompt.row.prompt))
    assert answer_text(answer_of(session, turn)) == answer, "a user does not hear the thought"
    assert answer_text(trajectory_of(session, 0, stop_reason="answered").text) == answer


def _prompts(then: Sequence[Message], first: Sequence[Message] = (), *, rewrites: bool = False) -> list[str]:
    """What the policy is asked to continue at a problem with two pictures, of two tokens and of three."""
    asked: list[str] = []

    def said(prompt: tuple[int, ...]) -> str:
        asked.append(text_of(prompt))
        return "<image>"

    session = _session(ScriptedChat(rewrites=rewrites), said, "[<image>] or [<image>]?", CAT_AND_DOG)
    asyncio.run(_talk(session, then, first))
    return asked


def test_a_later_turn_shows_the_pictures_where_they_were_and_no_others() -> None:
    """What the policy or a user says may spell `<image>`, and is a text like any other."""
    assert _prompts(MORE) == [SHOWN, SHOWN + "<image>\x03<user>more\x03<assistant>"]
    afresh = _prompts(({"role": "user", "content": "<image>?"},), rewrites=True)
    assert afresh[1] == SHOWN + "<image>\x03<user><image>?\x03<assistant>"
    begun = _prompts(MORE, ({"role": "user", "content": "[<image>] or [<image>]? Begin."},))
    assert begun[0] == SHOWN.replace("?", "? Begin.")
    with pytest.raises(UserError, match="does not show exactly the 2 pictures of the problem"):
        _prompts(MORE, ({"role": "user", "content": "[<image>]?"},))


SHOWN = f"<user>[{PICTURE * 2}] or [{PICTURE * 3}]?\x03<assistant>"
