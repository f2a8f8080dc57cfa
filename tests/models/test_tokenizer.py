"""The byte tokenizer of a fresh model, as it is and as every loader reads it back."""

import json
import string
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dagrpo.core.errors import UserError
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh, spelled_calls
from dagrpo.models.tokenizer import SPECIAL_TOKENS, character_tokenizer, tells_of_no_tools
from dagrpo.utils.files import sha256_of

HAMMER = "tests.models.hammer"
TOKENIZER = character_tokenizer(256)
PRINTABLE = st.text(st.sampled_from([chr(code) for code in range(0x20, 0x7F)] + ["\n"]))
CONVERSATION = [
    {"role": "user", "content": "1 + 2 = ?"},
    {"role": "assistant", "content": "#### 3"},
    {"role": "user", "content": "Sure?"},
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """The tokenizer as transformers loads it from a model folder."""
    folder = tmp_path_factory.mktemp("fresh") / "model"
    make_fresh(folder, Fresh(hidden_size=8, num_hidden_layers=1, intermediate_size=8), torch.float32)
    return AutoTokenizer.from_pretrained(folder)


@given(PRINTABLE)
def test_printable_ascii_comes_back_exactly(loaded: PreTrainedTokenizerBase, text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.decode(loaded.encode(text)) == text


def test_bytes_are_tokens_and_the_file_alone_gives_the_same(tmp_path: Path) -> None:
    assert len(TOKENIZER.encode(string.printable)) == len(string.printable)
    text = "50\u20ac \u00d7 2 \u2212 \u4e00 \U0001f600"
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert [TOKENIZER.encode(token) for token in SPECIAL_TOKENS] == [[0], [1], [2], [3]]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, len(TOKENIZER)) == (0, 3, 260)
    TOKENIZER.save_pretrained(tmp_path)
    alone = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert alone.encode("Tom's 3 + 4 = 7\n\n#### 7").ids == TOKENIZER.encode("Tom's 3 + 4 = 7\n\n#### 7")
    names = ("tokenizer.json", "chat_template.jinja")
    assert [sha256_of(tmp_path / name)[:16] for name in names] == ["ba1ead84a6a20df3", "a16f7f25cbbf463f"]


def test_a_conversation_is_rendered_turn_by_turn(loaded: PreTrainedTokenizerBase) -> None:
    text = loaded.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    assert text == ("<|user|>1 + 2 = ?<|end|><|assistant|>#### 3<|end|><|user|>Sure?<|end|><|assistant|>")
    assert loaded.decode(loaded.encode(text)) == text


CALCULATOR = ("calculator", "expression")
SEARCH = ("search", "query")
WITH_TOOLS = character_tokenizer(1024, [CALCULATOR, SEARCH])
CALL_TEXT = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*34"}}\n</tool_call>'


def _calling(function: str, content: str = "", **arguments: object) -> dict[str, object]:
    call = {"type": "function", "function": {"name": function, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


@pytest.mark.parametrize("pictures", [False, True])
@pytest.mark.parametrize("calls", [[], [("check", "answer")]])
def test_a_fresh_model_is_known_by_its_chat_template(
    tmp_path: Path, calls: list[tuple[str, str]], pictures: bool
) -> None:
    character_tokenizer(64, calls, pictures=pictures).save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert tells_of_no_tools(saved)
    saved.chat_template = "{{ tools }}"
    assert not tells_of_no_tools(saved)


def test_the_saved_tokenizer_spells_the_calls_of_every_function_of_a_tool_and_those_of_no_tool(tmp_path: Path) -> None:
    shape = Fresh(
        hidden_size=8, num_hidden_layers=1, intermediate_size=8, tools=[f"{HAMMER}:TOOL"], calls={"move": "way"}
    )
    make_fresh(tmp_path / "model", shape, torch.float32)
    saved = AutoTokenizer.from_pretrained(tmp_path / "model")
    for function, argument in (("hit", "nail"), ("drop", "foot"), ("move", "way")):
        text = f'<tool_call>\n{{"name": "{function}", "arguments": {{"{argument}": "abc"}}}}\n</tool_call>'
        ids = saved.encode(text)
        assert len(ids) == 2 + len("abc")
        assert saved.decode(ids, skip_special_tokens=True) == text


def test_the_template_writes_a_call_as_it_is_spelled_and_a_result_as_a_turn() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "12*34="},
        _calling("calculator", expression="12*34"),
        {"role": "tool", "content": "408"},
    ]
    text = WITH_TOOLS.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        f"<|system|>Be brief.<|end|><|user|>12*34=<|end|><|assistant|>{CALL_TEXT}<|end|><|tool|>408<|end|><|assistant|>"
    )


def test_content_and_several_calls_stand_on_lines_of_their_own() -> None:
    message = _calling("search", "Hm.", query='a "b" \u20ac')
    calls = message["tool_calls"]
    assert isinstance(calls, list)
    calls.append({"type": "function", "function": {"name": "search", "arguments": '{"query":  "c"}'}})
    text = WITH_TOOLS.apply_chat_template([message], tokenize=False)
    assert text == (
        '<|assistant|>Hm.\n<tool_call>\n{"name": "search", "arguments": {"query": "a \\"b\\" \u20ac"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "search", "arguments": {"query":  "c"}}\n</tool_call><|end|>'
    )


@given(PRINTABLE)
def test_with_tools_any_argument_comes_back_and_other_tokens_keep_their_numbers(argument: str) -> None:
    text = WITH_TOOLS.apply_chat_template([_calling("search", query=argument)], tokenize=False)
    assert WITH_TOOLS.decode(WITH_TOOLS.encode(text)) == text
    assert json.dumps(argument) in text
    assert WITH_TOOLS.encode(f"<|user|>{argument}<|end|>") == TOKENIZER.encode(f"<|user|>{argument}<|end|>")


def test_a_role_that_a_tokenizer_with_tools_does_not_know_is_refused() -> None:
    with pytest.raises(Exception, match="knows the roles system, user, assistant and tool, not robot"):
        WITH_TOOLS.apply_chat_template([{"role": "robot", "content": ""}], tokenize=False)


def test_a_function_without_a_text_argument_cannot_be_spelled() -> None:
    with pytest.raises(UserError, match=r"model\.fresh\.tools names tests\.models\.hammer:SAW, whose function saw"):
        spelled_calls([f"{HAMMER}:SAW"])


def test_a_tool_that_is_not_known_is_refused_with_the_parameter_that_names_it() -> None:
    with pytest.raises(ValidationError, match=r"`hammer` is not a tool.*; correct model\.fresh\.tools, or give"):
        Fresh(tools=["hammer"])
