"""Prompt lengths in tokens: written to every problem, the long ones dropped, the rest described."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.filters.problems import character_model, gone, left, qwen3_model, sieve, task_row
from tests.data.preparing import gsm8k_mirror, limited
from tests.pictures import picture
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dagrpo.chat.rendering import render
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.data.card import Card
from dagrpo.data.filters.prompt_length import (
    CHUNK,
    Lengths,
    count_prompt_tokens,
    count_tokens,
    drop_long_prompts,
    prompt_tokens,
    rendered,
    require_tools_shown,
)
from dagrpo.data.filters.sieve import Sieve
from dagrpo.data.prepare import prepare
from dagrpo.models.chat_template import MARK, QWEN2_5_VL_TOOLS
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.make import make_model
from dagrpo.models.pictures import PictureProcessor
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.tools import function_schemas
from dagrpo.utils.files import write_json


def test_every_problem_gets_the_tokens_of_its_prompt_and_the_longest_go(tmp_path: Path) -> None:
    found = sieve(["a", "abc", "abcd"], ["abcdefg"])
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    assert [problem.prompt_tokens for problem in found.rows()] == [4, 6, 7, 10]  # <|user|> <|end|> <|assistant|>
    drop_long_prompts(found, 6)
    assert (left(found), left(found, "test")) == ([0, 1], [])
    assert gone(found) == [("train", 2, "prompt too long", "7 tokens"), ("test", 0, "prompt too long", "10 tokens")]


def test_lengths_are_nearest_rank_percentiles() -> None:
    splits = {"train": [replace(task_row("x"), prompt_tokens=number) for number in range(4, 24)], "test": []}
    described = prompt_tokens(splits, tools_shown=None, images_counted=False)
    assert described.splits == {"train": Lengths(min=4, median=13, percent_95=22, max=23), "test": None}


def test_a_chat_template_that_leaves_the_tools_out_is_noticed(data_folder: Path, tmp_path: Path) -> None:
    tiny, qwen3 = character_model(tmp_path / "tiny"), qwen3_model(data_folder, tmp_path / "qwen3")
    with_tools = [task_row("Use the calculator.", tools=("calculator",))]
    assert count_prompt_tokens(Sieve({"train": with_tools}), tiny) is False
    assert count_prompt_tokens(Sieve({"train": with_tools}), qwen3) is True
    assert count_prompt_tokens(sieve(["a"]), tiny) is None


def _pictured(content: str, *images: bytes) -> Sieve:
    return Sieve({"train": [task_row(content, images=images)], "test": []})


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model whose tokens are 28 x 28 pixels, four of them the smallest picture."""
    folder = tmp_path_factory.mktemp("vision") / "model"
    make_model(folder, Model(fresh=Fresh(num_hidden_layers=1, vision=Vision(family="qwen2_5_vl", depth=1))))
    return folder


def test_a_picture_counts_as_the_tokens_that_it_takes(vision: Path) -> None:
    found = _pictured("<image>ab<image>", picture(28 * 3, 28 * 2), picture(28 * 5, 28))
    count_prompt_tokens(found, vision)
    (only,) = found.splits["train"]
    assert only.prompt_tokens == len(["<|user|>", "a", "b", "<|end|>", "<|assistant|>"]) + (2 + 6) + (2 + 5)
    prompts = PromptRenderer(load_tokenizer(vision), Conversation(), PictureProcessor.of(vision))
    assert len(prompts.prompt(0, only).token_ids) == only.prompt_tokens, "what the trainer and the engine see"


def test_for_a_model_of_text_a_picture_is_the_text_of_its_place(tmp_path: Path) -> None:
    found = _pictured("<image>", picture())
    count_prompt_tokens(found, character_model(tmp_path / "tiny"))
    assert found.splits["train"][0].prompt_tokens == len("<image>") + 3


def test_a_problem_whose_pictures_are_not_as_many_as_its_places_is_named(vision: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"task sums, train row 0: its pictures do not fit its prompt \(pictures: 2, `<image>` in the prompt: 1\): correct",
    ):
        count_prompt_tokens(_pictured("<image>", picture(), picture()), vision)


UNTOLD = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Its template writes what is said, and no tools."""
    character_model(tmp_path / "model")
    return with_template(tmp_path / "model", UNTOLD)


def with_template(model: Path, template: str) -> Path:
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(model)
    return model


def prepared(model: Path, folder: Path, *, evaluate: str = "gsm8k_tool", chat: str = "template") -> Card:
    mirror = gsm8k_mirror(folder / "mirror", ["How many?"])
    return prepare(
        "gsm8k_tool", folder / "out", limited(mirror), model=model, evaluate=[evaluate], train=[evaluate], chat=chat
    )


def test_a_task_whose_tools_the_template_leaves_out_is_refused_with_what_to_do(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"^gsm8k_tool offers the tool answer_check, .* would never learn of it: choose a model .* renderers",
    ):
        prepared(model, tmp_path)
    assert not (tmp_path / "out").exists()


def test_the_remedy_names_our_template_for_the_family_that_has_one(model: Path) -> None:
    write_json(model / "config.json", {"model_type": "qwen2_5_vl"})
    tokenizer = load_tokenizer(model)
    tokenizer.add_tokens([MARK], special_tokens=True)
    tokenizer.save_pretrained(model)
    with pytest.raises(
        UserError, match=r"would never learn of it: set model\.chat_template to qwen2_5_vl_tools, choose"
    ):
        require_tools_shown([task_row("How many?", tools=("answer_check",))], model, "template")


@pytest.mark.parametrize(
    ("changes", "shown"), [({"chat": "renderers"}, False), ({"evaluate": "gsm8k"}, False), ({}, True)]
)
def test_what_is_not_rendered_by_the_template_not_attempted_or_told_of_its_tools_is_prepared(
    model: Path, tmp_path: Path, changes: dict[str, str], shown: bool
) -> None:
    if shown:
        with_template(model, QWEN2_5_VL_TOOLS)
    assert prepared(model, tmp_path, **changes).prompt_tokens.tools_shown is shown


def test_demonstrations_of_calls_tell_of_a_tool_and_so_does_nothing_to_a_fresh_model(model: Path) -> None:
    untold = task_row("How many?", tools=("answer_check",))
    called = ({"role": "assistant", "content": "<tool_call>"},)
    require_tools_shown([untold, replace(untold, demonstration=called)], model, "template")
    require_tools_shown([task_row("How many?")], model, "template")
    write_json(model / "origin.json", {"source": "fresh"})
    require_tools_shown([untold], model, "template")


TEXTS = [
    "What is 2 + 2?",
    "  white space \n\n kept \t ",
    "Ünïcode, 求 $x$ 的值 é e\u0301",
    "<|im_start|>user inside<|im_end|> and <think>",
    "<|end|><|user|>",
    "#### 18",
    "x" * 500,
]


@pytest.mark.parametrize("family", ["tiny", "qwen3"])
def test_counts_equal_those_of_autotokenizer_and_render(data_folder: Path, tmp_path: Path, family: str) -> None:
    folder = tmp_path / family
    folder = qwen3_model(data_folder, folder) if family == "qwen3" else character_model(folder)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert type(ours) is type(theirs)
    forms: list[tuple[str, tuple[str, ...]]] = [
        ("", ()),
        ("You are an expert.", ()),
        ("You are an expert.", ("answer_check", "calculator")),
    ]
    for system, tools in forms if family == "qwen3" else forms[:1]:
        prompts = [task_row(text, system=system, tools=tools) for text in TEXTS]
        schemas = function_schemas(tools, {})
        expected = [render(theirs, prompt.prompt, schemas) for prompt in prompts]
        texts = [rendered(ours, prompt, schemas) for prompt in prompts]
        assert texts == [text for text, _ in expected]
        assert count_tokens(ours, texts) == [len(token_ids) for _, token_ids in expected]
        assert all(("calculator" in text) == ("calculator" in tools) for text in texts)


def test_more_texts_than_a_chunk_are_all_counted_in_order() -> None:
    texts = ["x" * (number % 7 + 1) for number in range(2 * CHUNK + 1)]
    assert count_tokens(character_tokenizer(256), texts) == [len(text) for text in texts]


def test_a_prompt_that_the_chat_template_refuses_is_named(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(character_model(tmp_path / "tiny"))
    with pytest.raises(
        ValueError, match=r"refuses the prompt of task sums, train row 4 \(.*\): choose another"
    ) as error:
        rendered(tokenizer, task_row("a", index=4, system="Be brief."))
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.nightly
def test_preparing_imports_no_torch(tmp_path: Path) -> None:
    folder = character_model(tmp_path / "tiny")
    program = (
        "import sys; from pathlib import Path; import dagrpo.data.prepare; "
        "from dagrpo.checkpoints.tokenizers import load_tokenizer; load_tokenizer(Path(sys.argv[1])); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder)], check=False).returncode == 0


def test_a_tokenizer_that_marks_where_a_text_begins_is_counted_so_whatever_its_file_says() -> None:
    backend = Tokenizer(BPE(vocab={"\u2581": 0, "a": 1}, merges=[]))
    backend.pre_tokenizer = Metaspace(prepend_scheme="first", split=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, additional_special_tokens=["<|end|>"])
    backend.enable_truncation(1)
    text = "a<|end|>a"  # the mark, a, <|end|>, a
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == [0, 1, 2, 1]
    assert count_tokens(tokenizer, [text]) == [4]
