"""The texts and tokens counted here are those that rendering.py gives to training and evaluation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.filters.problems import character_model, qwen3_model, task_row
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dagrpo.chat.rendering import render
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.data.filters.tokenizer import CHUNK, TokenCounter, rendered
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.tools import function_schemas

TEXTS = [
    "What is 2 + 2?",
    "  white space \n\n kept \t ",
    "Ünïcode, 求 $x$ 的值 é e\u0301",
    "<|im_start|>user inside<|im_end|> and <think>",
    "<|end|><|user|>",
    "#### 18",
    "x" * 500,
]


@pytest.mark.parametrize("tools", [(), ("calculator",), ("answer_check", "calculator")])
@pytest.mark.parametrize("system", ["", "You are an expert."])
def test_qwen3_counts_equal_those_of_autotokenizer_and_render(
    data_folder: Path, tmp_path: Path, tools: tuple[str, ...], system: str
) -> None:
    folder = qwen3_model(data_folder, tmp_path / "qwen3")
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert type(ours) is type(theirs)
    prompts = [task_row(text, system=system, tools=tools) for text in TEXTS]
    schemas = function_schemas(tools, {})
    expected = [render(theirs, prompt.prompt, schemas) for prompt in prompts]
    texts = [rendered(ours, prompt, schemas) for prompt in prompts]
    assert texts == [text for text, _ in expected]
    assert TokenCounter(ours).count(texts) == [len(token_ids) for _, token_ids in expected]
    assert all(("calculator" in text) == ("calculator" in tools) for text in texts)


def test_the_character_tokenizer_counts_equal_those_of_autotokenizer_and_render(tmp_path: Path) -> None:
    folder = character_model(tmp_path / "tiny")
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    prompts = [task_row(text) for text in TEXTS]
    expected = [render(theirs, prompt.prompt) for prompt in prompts]
    texts = [rendered(ours, prompt) for prompt in prompts]
    assert texts == [text for text, _ in expected]
    assert TokenCounter(ours).count(texts) == [len(token_ids) for _, token_ids in expected]
    assert TokenCounter(ours).count([rendered(ours, task_row("12+3=?"))]) == [6 + 3]


@given(st.lists(st.text(st.sampled_from("a |<>end\n\u0301user")) | st.sampled_from(TEXTS), max_size=40))
def test_counting_by_parts_is_counting_whole_texts(texts: list[str]) -> None:
    tokenizer = character_tokenizer(256)
    marked = [f"<|user|>{text}<|end|>{text}<|assistant|>" for text in texts]
    expected = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in marked]
    assert TokenCounter(tokenizer).count(marked) == expected


def test_more_texts_than_a_chunk_are_all_counted_in_order() -> None:
    texts = ["x" * (number % 7 + 1) for number in range(2 * CHUNK + 1)]
    assert TokenCounter(character_tokenizer(256)).count(texts) == [len(text) for text in texts]


def test_no_text_gives_no_count() -> None:
    assert TokenCounter(character_tokenizer(256)).count([]) == []


def test_a_prompt_that_the_chat_template_refuses_is_named(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(character_model(tmp_path / "tiny"))
    with pytest.raises(
        ValueError, match=r"refuses the prompt of task sums, train row 4 \(.*\): choose another"
    ) as error:
        rendered(tokenizer, task_row("a", index=4, system="Be brief."))
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_another_kind_of_model_is_left_to_autotokenizer(tmp_path: Path) -> None:
    folder = character_model(tmp_path / "tiny")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert type(load_tokenizer(folder)) is type(theirs)


@pytest.mark.nightly
def test_preparing_imports_no_torch(tmp_path: Path) -> None:
    folder = character_model(tmp_path / "tiny")
    program = (
        "import sys; from pathlib import Path; import dagrpo.data.prepare; "
        "from dagrpo.checkpoints.tokenizers import load_tokenizer; load_tokenizer(Path(sys.argv[1])); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder)], check=False).returncode == 0


def test_a_tokenizer_that_marks_where_a_text_begins_is_counted_whole() -> None:
    backend = Tokenizer(BPE(vocab={"\u2581": 0, "a": 1}, merges=[]))
    backend.pre_tokenizer = Metaspace(prepend_scheme="first", split=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, additional_special_tokens=["<|end|>"])
    text = "a<|end|>a"  # the mark, a, <|end|>, a; cut into parts it would have the mark twice
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == [0, 1, 2, 1]
    assert TokenCounter(tokenizer).count([text]) == [4]
