"""What supervised fine-tuning learns: the tokens of a rollout in which the policy says just that, and nothing between."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import pictures
from tests.pictures import picture
from tests.trainer import runs
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import ChatFormat, Message, ToolSchema, chat_format
from dagrpo.chat.renderers.template import Config
from dagrpo.chat.rendering import render
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Completion, Row
from dagrpo.data.schema import to_table
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.session import Session, SessionLimits
from dagrpo.tools import functions_of
from dagrpo.trainer.batches.supervised import Supervision, supervised_sequences
from dagrpo.utils.tables import write_parquet
from dagrpo_toys.generated_task import answer_message, call_message, result_message

PLAIN = character_tokenizer(256)
TOKENIZER = character_tokenizer(1024, [("calculator", "expression")])
CHAT = chat_format(TOKENIZER, Config())
TOOLS = tuple(function.schema for function in functions_of(["calculator"], {})["calculator"])
CALLING = replace(
    runs.task_row(2),
    tools=("calculator",),
    demonstration=(call_message("calculator", {"expression": "1+2"}), result_message("3"), answer_message("#### 3")),
)


def _sequence(task_row: Row, chat: ChatFormat = CHAT) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    written = Supervision(TOKENIZER, chat).sequence(task_row, TOOLS, "the row")
    return written.token_ids, written.loss_mask


def test_a_row_without_a_demonstration_learns_its_answer_and_the_end_of_the_turn() -> None:
    task_row = runs.task_row(2)
    row = Supervision(PLAIN, chat_format(PLAIN, Config())).sequence(task_row, (), "the row")
    prompt = render(PLAIN, task_row.prompt)[1]
    answer = PLAIN(task_row.answer, add_special_tokens=False)["input_ids"]
    assert row.token_ids == (*prompt, *answer, PLAIN.eos_token_id)
    assert row.loss_mask == (*[False] * len(prompt), *[True] * (len(answer) + 1))


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|vision_start|>"])
def test_an_answer_that_would_show_a_picture_is_refused_by_row(token: str) -> None:
    task_row, chat = replace(runs.task_row(2), answer=f"It is {token}."), chat_format(pictures.TOKENIZER, Config())
    with pytest.raises(UserError, match="the row has an answer with a token of pictures in it, such as"):
        Supervision(pictures.TOKENIZER, chat, pictures.PROCESSOR).sequence(task_row, (), "the row")


def test_a_row_with_pictures_carries_them_beside_their_placeholders() -> None:
    task_row = replace(runs.task_row(2), prompt=({"role": "user", "content": "<image>What?"},), images=(picture(),))
    chat = chat_format(pictures.TOKENIZER, Config())
    row = Supervision(pictures.TOKENIZER, chat, pictures.PROCESSOR).sequence(task_row, (), "the row")
    assert (row.pictures, row.token_ids.count(pictures.TOKENS.image)) == ((picture(),), 4)
    assert not any(
        mask for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if token >= pictures.TOKENS.image
    )


def test_of_a_demonstration_the_policys_turns_are_learned_and_the_results_are_not() -> None:
    token_ids, loss_mask = _sequence(CALLING)
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+2"}}\n</tool_call>'
    assert TOKENIZER.decode(token_ids) == (
        f"<|user|>{CALLING.question}<|end|><|assistant|>{call}<|end|><|tool|>3<|end|><|assistant|>#### 3<|end|>"
    )
    learned = [token for token, is_learned in zip(token_ids, loss_mask, strict=True) if is_learned]
    assert TOKENIZER.decode(learned) == f"{call}<|end|>#### 3<|end|>"
    assert len(learned) == 2 + len("1+2") + 1 + len("#### 3") + 1


def _rollout(task_row: Row) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """The sample of a session in which the policy says what the example demonstrates."""
    answers = [message for message in task_row.demonstration if message["role"] == "assistant"]
    spoken = iter([(*TOKENIZER.encode(CHAT.spelled(answer)), TOKENIZER.eos_token_id) for answer in answers])

    async def complete(prompt: tuple[int, ...], longest: int) -> Completion:
        token_ids = next(spoken)
        return Completion(token_ids=token_ids, logprobs=(-1.0,) * len(token_ids), finish_reason="stop")

    text, token_ids = CHAT.prompt(task_row.prompt, TOOLS)
    problem = Prompt(index=0, row=task_row, text=text, token_ids=token_ids, tools=TOOLS)
    limits = SessionLimits(turns=9, tokens=10_000, new_tokens=1000)
    session = Session(prompt=problem, chat=CHAT, complete=complete, limits=limits, seed=0, name="x")
    asyncio.run(_play(session, task_row))
    (sample,) = session.samples()
    return tuple(sample.token_ids), tuple(map(bool, sample.loss_mask))


async def _play(session: Session, task_row: Row) -> None:
    turn = await session.ask(task_row.prompt)
    new: list[Message] = []
    for message in task_row.demonstration[1:]:
        if message["role"] != "assistant":
            new.append(message)
            continue
        turn, new = await session.ask(new, turn), []


WORDS = st.text('ab 1+*"\\\n<>{}\u20ac', max_size=12)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=3), WORDS)
def test_the_tokens_are_those_of_a_rollout_in_which_the_policy_says_so(
    calls: Sequence[tuple[str, str]], answer: str
) -> None:
    turns = [
        each
        for text, found in calls
        for each in (call_message("calculator", {"expression": text}), result_message(found or "-"))
    ]
    task_row = replace(CALLING, demonstration=(*turns, answer_message(answer)))
    assert _sequence(task_row) == _rollout(task_row)


def test_rows_with_and_without_a_demonstration_stand_side_by_side_and_one_with_nothing_to_learn_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.parquet"
    write_parquet(path, to_table([runs.task_row(1), CALLING]))
    one, other = supervised_sequences(path, TOKENIZER, CHAT, {})
    assert (other.token_ids, other.loss_mask) == _sequence(CALLING)
    assert len(one.token_ids) < len(other.token_ids)
    write_parquet(path, to_table([runs.task_row(1), replace(runs.task_row(2), answer="")]))
    with pytest.raises(UserError, match=r"row 1: test has no solutions to fine-tune on: set sft\.steps to 0"):
        supervised_sequences(path, TOKENIZER, CHAT, {})


@pytest.mark.parametrize(
    ("call", "reason"),
    [(call_message("abacus", {"expression": "1"}), "abacus"), (call_message("calculator", {"sum": "1"}), "expression")],
)
def test_a_call_that_the_task_does_not_offer_is_not_taught(call: Message, reason: str) -> None:
    task_row = replace(CALLING, demonstration=(call, result_message("1"), answer_message("1")))
    with pytest.raises(UserError, match=rf"the row demonstrates a call that rollout\.chat does not read.*{reason}"):
        _sequence(task_row)


class OfOneTurn:
    """A format that writes no calls, and whose template rewrites what was said."""

    prompt = CHAT.prompt
    parse = CHAT.parse
    message = CHAT.message
    text = CHAT.text
    require_tool_results = CHAT.require_tool_results

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        return None

    def spelled(self, message: Message) -> str:
        if "tool_calls" in message:
            raise UserError("this format writes no calls: use another.")
        return str(message["content"])


def test_a_format_that_writes_no_calls_and_a_template_that_rewrites_earlier_turns_are_refused() -> None:
    with pytest.raises(UserError, match="the row has a demonstration that cannot be written: this format writes no"):
        _sequence(CALLING, OfOneTurn())
    dialogue = (answer_message("4"), {"role": "user", "content": "Sure?"}, answer_message("3"))
    with pytest.raises(UserError, match="the row has a demonstration of several turns, and the model's chat template"):
        _sequence(replace(CALLING, demonstration=dialogue), OfOneTurn())


def test_real_templates_write_the_same_tokens_as_a_rendered_prompt_and_its_answer(data_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(data_folder / "qwen3_tokenizer")
    row = Supervision(tokenizer, chat_format(tokenizer, Config())).sequence(runs.task_row(2), (), "the row")
    prompt = render(tokenizer, runs.task_row(2).prompt)[1]
    answer = tokenizer(runs.task_row(2).answer, add_special_tokens=False)["input_ids"]
    assert row.token_ids == (*prompt, *answer, tokenizer.eos_token_id)
