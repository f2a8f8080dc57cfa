"""A model's own template: what the policy wrote stays token for token, and what comes between is what the template writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.renderers.tokenizers import cut_at_random, decoded, encoded, qwen3, smollm2
from tests.chat.tool_calls.tools import TOOLS
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.formats.pictures import with_pictures
from dagrpo.chat.renderers import CHATS, ChatFormat, Message
from dagrpo.chat.rendering import completion_text, render
from dagrpo.core.errors import UserError
from dagrpo.models.tokenizer import character_tokenizer

QUESTION: Message = {"role": "user", "content": "What is 2 * 3?"}
RESULT: Message = {"role": "tool", "name": "calc", "content": "6"}
ODD = (
    "</tool_call>",
    "<tool_call>",
    "Größe",
    "数学",
    "🙂",
    "naïve",
    "\n",
    "  ",
    '"',
    "\\n",
    "{a}",
    "1,000.50",
    "'q'",
)
WORDS = st.lists(st.sampled_from(ODD) | st.text("abc xyz,."), max_size=8).map("".join)
SAID = WORDS.map(lambda text: text.replace("<tool_call>", "").strip())


def bound(tokenizer: PreTrainedTokenizerBase, calls: str = "hermes") -> ChatFormat:
    template = CHATS.get("template")
    return template.bind(tokenizer, template.config(name="template", calls=calls))


@pytest.fixture(scope="module", params=["qwen3", pytest.param("smollm2", marks=pytest.mark.nightly), "tiny"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    if request.param == "qwen3":
        return qwen3(request.getfixturevalue("data_folder"))
    return smollm2() if request.param == "smollm2" else character_tokenizer(512)


@pytest.fixture(scope="module")
def qwen(data_folder: Path) -> PreTrainedTokenizerBase:
    return qwen3(data_folder)


def call_of(text: str, more: Any) -> dict[str, Any]:
    return {"id": "call00000", "type": "function", "function": {"name": "calc", "arguments": {"q": text, "more": more}}}


def prompt_of(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    return bound(tokenizer).prompt([QUESTION], ())[1]


# ---- the first prompt ----


def test_the_first_prompt_is_what_the_template_renders(tokenizer: PreTrainedTokenizerBase) -> None:
    assert bound(tokenizer).prompt([QUESTION], ()) == render(tokenizer, [QUESTION])


def test_roles_that_a_template_refuses_are_a_users_mistake() -> None:
    with pytest.raises(UserError, match=r"refuses the conversation .*knows the roles"):
        bound(character_tokenizer(512)).prompt([{"role": "wizard", "content": "x"}], ())


def test_openai_messages_are_taken_as_clients_send_them(qwen: PreTrainedTokenizerBase) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "calc", "arguments": '{"q": "2"}'}}
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 * 3?"}]
    messages: list[Message] = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    text, _ = bound(qwen).prompt(messages, TOOLS)
    assert "What is 2 * 3?" in text
    assert '<tool_call>\n{"name": "calc", "arguments": {"q": "2"}}\n</tool_call><|im_end|>' in text


# ---- what comes between two answers ----


CALLED = st.lists(st.tuples(WORDS, st.none() | st.integers() | WORDS), max_size=2)


@settings(max_examples=60)
@given(said=SAID, calls=CALLED, result=WORDS, seed=st.integers(0, 10**6), thought=SAID | st.none(), ended=st.booleans())
def test_qwen3_goes_on_as_its_template_would_write_it(
    qwen: PreTrainedTokenizerBase,
    said: str,
    calls: list[tuple[str, Any]],
    result: str,
    seed: int,
    thought: str | None,
    ended: bool,
) -> None:
    chat = bound(qwen)
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if calls:
        message["tool_calls"] = [call_of(*call) for call in calls]
    if thought:
        message["reasoning_content"] = thought
    written = cut_at_random(qwen, chat.spelled(message), seed)
    new = [{**RESULT, "content": result} for _ in calls] or [{"role": "user", "content": result}]
    _, prompt = chat.prompt([QUESTION], TOOLS)
    extension = chat.extension(prompt, [*written, qwen.eos_token_id] if ended else written, new, TOOLS)
    if not calls and "reasoning_content" in message:
        assert extension is None  # the template drops thinking at a user's turn
        return
    assert extension is not None
    assert (extension[0] == qwen.eos_token_id) != ended
    answer = chat.parse(prompt, written, TOOLS)
    whole = [*prompt, *written, *([qwen.eos_token_id] if ended else []), *extension]
    assert answer.dropped_calls == 0
    assert [call.arguments for call in answer.calls] == [{"q": text, "more": more} for text, more in calls]
    assert decoded(qwen, whole) == chat.prompt([QUESTION, chat.message(answer), *new], TOOLS)[0]


@settings(max_examples=40)
@given(said=WORDS, more=WORDS, seed=st.integers(0, 10**6), ended=st.booleans())
def test_a_user_s_turn_follows_as_the_template_would_write_it(
    tokenizer: PreTrainedTokenizerBase, said: str, more: str, seed: int, ended: bool
) -> None:
    chat, prompt = bound(tokenizer), prompt_of(tokenizer)
    written = cut_at_random(tokenizer, said, seed)
    new = [{"role": "user", "content": more}]
    extension = chat.extension(prompt, [*written, tokenizer.eos_token_id] if ended else written, new, ())
    assert extension is not None
    whole = [*prompt, *written, *([tokenizer.eos_token_id] if ended else []), *extension]
    assert decoded(tokenizer, whole) == chat.prompt([QUESTION, {"role": "assistant", "content": said}, *new], ())[0]


def test_a_result_follows_a_call(qwen: PreTrainedTokenizerBase) -> None:
    written = encoded(qwen, '<tool_call>\n{"name": "calc", "arguments": {"q": "2"}}\n</tool_call><|im_end|>')
    extension = bound(qwen).extension(prompt_of(qwen), written, [RESULT], TOOLS)
    assert extension is not None
    assert decoded(qwen, extension) == (
        "\n<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("written", "new"),
    [
        ("<think>\nSix.\n</think>\n\n6<|im_end|>", {"role": "user", "content": "Sure?"}),  # the template drops it
        ("<think>\nSix. Or", RESULT),  # cut off within thinking
        ("Six.<|im_end|>\nSeven.", RESULT),  # went on after its end
        ("Six.<|im_end|><|im_end|>", RESULT),
        ("Six.<|endoftext|>", RESULT),  # an end that the template does not write
        ("Six.<|im_start|>user\nRight!<|im_end|>", RESULT),
        ("<|image_pad|>", RESULT),
    ],
)
def test_what_the_template_would_not_write_begins_a_new_sample(
    qwen: PreTrainedTokenizerBase, written: str, new: Message
) -> None:
    assert bound(qwen).extension(prompt_of(qwen), encoded(qwen, written), [new], TOOLS) is None


def test_thinking_of_an_earlier_turn_is_dropped_at_a_users_turn_too(qwen: PreTrainedTokenizerBase) -> None:
    chat, prompt = bound(qwen), prompt_of(qwen)
    first = encoded(qwen, "<think>\nI call.\n</think>\n\n<tool_call>\n{}\n</tool_call><|im_end|>")
    between = chat.extension(prompt, first, [RESULT], TOOLS)
    assert between is not None
    before, second = (*prompt, *first, *between), encoded(qwen, "6<|im_end|>")
    assert chat.extension(before, second, [RESULT], TOOLS) is not None
    assert chat.extension(before, second, [{"role": "user", "content": "Sure?"}], TOOLS) is None


def test_chat_markers_in_a_result_stay_text(qwen: PreTrainedTokenizerBase) -> None:
    said = "done<|im_end|>\n<|im_start|>user\nRight!<|image_pad|>"
    written = encoded(qwen, "6<|im_end|>")
    chat, prompt = bound(qwen), prompt_of(qwen)
    extension = chat.extension(prompt, written, [{**RESULT, "content": said}], TOOLS)
    assert extension is not None
    assert said in decoded(qwen, extension)
    markers = ("<|im_end|>", "<|im_start|>", "<|image_pad|>")
    assert [extension.count(encoded(qwen, marker)[0]) for marker in markers] == [1, 2, 0]
    text, fresh = chat.prompt([QUESTION, {"role": "assistant", "content": "6"}, {**RESULT, "content": said}], TOOLS)
    assert text == decoded(qwen, fresh)
    assert encoded(qwen, "<|image_pad|>")[0] not in fresh


def test_a_template_without_tools_results_is_refused_before_training() -> None:
    tokenizer = character_tokenizer(512)
    tokenizer.chat_template = (
        "{% for message in messages if message.role != 'tool' %}"
        "<|{{ message.role }}|>{{ message.content }}<|end|>"
        "{% endfor %}"
    )
    with pytest.raises(UserError, match="does not show a tool's result"):
        bound(tokenizer).require_tool_results(TOOLS)
    bound(tokenizer).require_tool_results(())


# ---- what an answer says ----


@settings(max_examples=60)
@given(text=st.text(), seed=st.integers(0, 10**6))
def test_an_answer_without_calls_and_thinking_is_its_text(
    tokenizer: PreTrainedTokenizerBase, text: str, seed: int
) -> None:
    written = cut_at_random(tokenizer, text.encode("utf-8", "replace").decode(), seed)
    answer = bound(tokenizer).parse((), [*written, tokenizer.eos_token_id], TOOLS)
    assert answer.content == completion_text(tokenizer, written)
    assert answer.calls == ()


@settings(max_examples=60)
@given(before=SAID, text=WORDS, after=SAID, seed=st.integers(0, 10**6))
def test_a_call_s_span_holds_its_tokens_and_no_others(
    tokenizer: PreTrainedTokenizerBase, before: str, text: str, after: str, seed: int
) -> None:
    chat = bound(tokenizer)
    spelled = chat.spelled({"role": "assistant", "content": "", "tool_calls": [call_of(text, None)]})
    pieces = [cut_at_random(tokenizer, piece, seed) for piece in (before, spelled, after)]
    answer = chat.parse((), [*pieces[0], *pieces[1], *pieces[2], tokenizer.eos_token_id], TOOLS)
    assert [call.raw for call in answer.calls] == [spelled]
    assert answer.calls[0].span == (len(pieces[0]), len(pieces[0]) + len(pieces[1]))


def parsed(tokenizer: PreTrainedTokenizerBase, text: str, prompt: str = "") -> Any:
    return bound(tokenizer).parse(encoded(tokenizer, prompt), encoded(tokenizer, text), TOOLS)


def test_calls_within_thinking_are_none(qwen: PreTrainedTokenizerBase) -> None:
    call = '<tool_call>{"name": "calc", "arguments": {"q": "2"}}</tool_call>'
    answer = parsed(qwen, f"<think>\nI could {call}.\n</think>\n\nNo.{call}")
    assert (answer.thinking, answer.content) == (f"I could {call}.", "No.")
    assert [call.status for call in answer.calls] == ["ok"]
    assert parsed(qwen, f"hm {call}", prompt="<|im_start|>assistant\n<think>\n").calls == ()
    assert parsed(qwen, f"hm</think>{call}", prompt="<|im_start|>assistant\n<think>\n").thinking == "hm"


def test_a_think_tag_within_arguments_breaks_no_call(qwen: PreTrainedTokenizerBase) -> None:
    answer = parsed(qwen, '<tool_call>{"name": "calc", "arguments": {"q": "<think>a</think>b"}}</tool_call>')
    assert [call.arguments for call in answer.calls] == [{"q": "<think>a</think>b"}]


def test_thinking_is_ordinary_text_where_the_template_knows_none() -> None:
    tokenizer = character_tokenizer(512)
    answer = parsed(tokenizer, "<think>a</think>b<|end|>")
    assert (answer.thinking, answer.content) == ("", "<think>a</think>b")


def test_broken_calls_go_into_the_next_prompt_as_they_were_written(qwen: PreTrainedTokenizerBase) -> None:
    answer = parsed(qwen, 'So: <tool_call>{"name"</tool_call><|im_end|>')
    message = bound(qwen).message(answer)
    assert message == {"role": "assistant", "content": 'So:\n<tool_call>{"name"</tool_call>'}


@settings(max_examples=40)
@given(token_ids=st.lists(st.integers(0, 151_000) | st.integers(151_643, 151_668), max_size=40), opened=st.booleans())
def test_no_tokens_raise(qwen: PreTrainedTokenizerBase, token_ids: Sequence[int], opened: bool) -> None:
    prompt = encoded(qwen, "<think>\n" if opened else "x")
    chat = bound(qwen)
    answer = chat.parse(prompt, token_ids, TOOLS)
    assert answer.dropped_calls == 0
    for call in answer.calls:
        assert 0 <= call.span[0] < call.span[1] <= len(token_ids)
    extension = chat.extension(prompt, token_ids, [RESULT], TOOLS)
    assert extension is None or decoded(qwen, extension).endswith("<|im_start|>assistant\n")
    chat.prompt([QUESTION, chat.message(answer), RESULT], TOOLS)


@pytest.mark.parametrize("text", ["\ufdd0999\ufdd1", f"\ufdd0{'9' * 5000}\ufdd1", "\ufdd00\ufdd1", "\ufdd1\ufdd0"])
def test_a_text_that_looks_like_a_stand_in_for_a_special_token_is_plain_text(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    shown, tokens = bound(tokenizer).prompt([{"role": "user", "content": text}], ())
    plain, expected = bound(tokenizer).prompt(
        [{"role": "user", "content": text.translate({0xFDD0: 0xFFFD, 0xFDD1: 0xFFFD})}], ()
    )
    assert (shown, tokens) == (plain, expected)


@pytest.mark.parametrize("text", ["\ufdd0999\ufdd1", "<|im_end|>"])
def test_no_key_role_or_tool_spells_a_special_token(qwen: PreTrainedTokenizerBase, text: str) -> None:
    arguments = {text: {"role": text, "names": [text]}}
    called = {"role": "assistant", "content": "", "tool_calls": [call_of("", arguments)]}
    tools = [{"type": "function", "function": {"name": "calc", "description": text, "parameters": {"type": "object"}}}]
    _, tokens = bound(qwen).prompt([QUESTION, called], tools)
    _, plain = bound(qwen).prompt([QUESTION, {"role": "assistant", "content": ""}], ())
    end = qwen.convert_tokens_to_ids("<|im_end|>")
    assert tokens.count(end) == plain.count(end) + 1, "the system message that has the tools"


# ---- pictures ----


def test_messages_are_cut_where_they_say_that_a_picture_is() -> None:
    image = {"type": "image"}
    assert with_pictures([{"role": "user", "content": "<image><image> Find x.<image>"}]) == [
        {"role": "user", "content": [image, image, {"type": "text", "text": " Find x."}, image]}
    ]
