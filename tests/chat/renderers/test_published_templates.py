"""The chat templates that models are published with, as the package trl carries them; read in place, never copied."""

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tests.chat.renderers.tokenizers import decoded, encoded
from tests.chat.tool_calls.tools import TOOLS
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import CHATS, ChatFormat
from dagrpo.core.errors import UserError
from dagrpo.models.tokenizer import character_tokenizer

RESULT = {"role": "tool", "name": "calc", "tool_call_id": "call00000", "content": "42"}
USER = {"role": "user", "content": "And 3 * 4?"}
MARKER = re.compile(r"<[|｜][^<>{}'\" ]{2,40}[|｜]>|<\|?(?:start_of_turn|end_of_turn|turn|eos|bos)\|?>")
GOES_ON_AFTER_A_RESULT = (
    "lfm2",
    "llama3_1",
    "llama3_2",
    "nemotron_3_nano",
    "qwen2_5",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_5_nothink",
    "qwen3_5_think",
    "qwen3_6",
    "qwen3_8",
    "qwen3_instruct_2507",
    "qwen3_vl",
)
SHOWS_NO_RESULT = ("cohere", "cohere2", "gemma", "gemma3", "phi3", "phi3_5")
REWRITES = ("deepseekv3", "gemma4_v5", "gptoss", "glm4moe")  # has framing of its own: a family of `renderers`


@pytest.fixture(scope="module")
def templates() -> Iterator[Path]:
    pytest.importorskip("trl", reason="the package trl, which carries the templates, is not installed")
    with resources.as_file(resources.files("trl") / "chat_templates") as folder:
        yield folder


def bound(templates: Path, name: str) -> tuple[ChatFormat, PreTrainedTokenizerBase]:
    """A template with a tokenizer to which its markers were added: only that each is one token matters."""
    tokenizer = character_tokenizer(4096)
    tokenizer.chat_template = (templates / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer.add_special_tokens({"extra_special_tokens": sorted(set(MARKER.findall(tokenizer.chat_template)))})
    tokenizer.bos_token = "<|pad|>"
    template = CHATS.get("template")
    return template.bind(tokenizer, template.config(name="template")), tokenizer


@pytest.mark.parametrize("name", GOES_ON_AFTER_A_RESULT)
def test_the_conversation_goes_on_as_the_template_writes_it(templates: Path, name: str) -> None:
    chat, tokenizer = bound(templates, name)
    chat.require_tool_results(TOOLS)
    text, prompt = chat.prompt([{"role": "user", "content": "2 * 3?"}], TOOLS)
    call = {"id": "call00000", "type": "function", "function": {"name": "calc", "arguments": {"q": "2 * 3"}}}
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    whole = chat.prompt([{"role": "user", "content": "2 * 3?"}, message, RESULT], TOOLS)[0]
    opened = text.rstrip().endswith("<think>")
    written = encoded(tokenizer, "Hm.</think>So." if opened else "Hm.")
    extension = chat.extension(prompt, written, [RESULT], TOOLS)
    assert extension is not None
    assert "42" in decoded(tokenizer, extension)
    assert whole.endswith(decoded(tokenizer, extension))
    assert (chat.extension(prompt, written, [USER], TOOLS) is None) == (
        opened and name != "qwen3_8"
    )  # which keeps thinking


@pytest.mark.parametrize("name", SHOWS_NO_RESULT)
def test_a_template_that_hides_results_is_refused(templates: Path, name: str) -> None:
    with pytest.raises(UserError, match="does not show a tool's result"):
        bound(templates, name)[0].require_tool_results(TOOLS)


@pytest.mark.parametrize("name", REWRITES)
def test_a_template_that_frames_results_by_what_was_said_is_never_extended(templates: Path, name: str) -> None:
    chat, tokenizer = bound(templates, name)
    assert chat.extension((), encoded(tokenizer, "Hm."), [RESULT], TOOLS) is None


def test_every_template_is_extended_or_says_no(templates: Path) -> None:
    names = sorted(path.stem for path in templates.glob("*.jinja") if not path.stem.endswith("_training"))
    assert len(names) >= 30
    for name in names:
        chat, tokenizer = bound(templates, name)
        for new in ([RESULT], [RESULT, RESULT], [USER]):
            extension = chat.extension((), encoded(tokenizer, "Hm."), new, TOOLS)
            assert extension is None or all(message["content"] in decoded(tokenizer, extension) for message in new)
