"""Templates of strangers: the text that transformers gives, or a sentence, and never more than the limits."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hostile import anything
from transformers.utils.chat_template_utils import render_jinja_template

from dagrpo.chat_templates.rendering import MODULE, RENDERER, Renderer, TemplateRefusal
from dagrpo.errors import UserError
from dagrpo.line_process import LineProcess
from dagrpo.models.tokenizer import CHAT_TEMPLATE, CHAT_TEMPLATE_WITH_TOOLS

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "2 + 3, <b>\u00e9\u2028</b>?"},
    {"role": "assistant", "content": "5"},
]
TOOL = {"type": "function", "function": {"name": "add", "description": "a < b", "parameters": {"type": "object"}}}
MARKED = (
    "{%- for m in messages %}{% if loop.index > 9 %}{% break %}{% endif %}{% set x = 1 %}"
    "{% generation %}{{ m.content | trim }}{% set x = 2 %}{% endgeneration %}{{ x }}{{ m | tojson(indent=1) }}{% endfor %}\n"
)


def _variables(messages: list[dict[str, Any]], **others: Any) -> dict[str, Any]:
    return {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, **others}


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    """With limits that are soon reached."""
    renderer = Renderer(memory_bytes=256 << 20, cpu_seconds=0.5, longest=10_000)
    yield renderer
    renderer.close()


@pytest.mark.parametrize(
    "template", [CHAT_TEMPLATE, CHAT_TEMPLATE_WITH_TOOLS, MARKED], ids=["plain", "tools", "marked"]
)
def test_the_text_is_the_one_that_transformers_gives(template: str) -> None:
    for tools in (None, [TOOL]):
        (theirs,), _ = render_jinja_template(
            [TALK], tools=tools, chat_template=template, add_generation_prompt=True, eos_token="</s>"
        )
        assert RENDERER.render(template, _variables(TALK, tools=tools, eos_token="</s>"), "m") == theirs


def test_the_text_of_a_published_template_is_the_one_that_transformers_gives(data_folder: Path) -> None:
    template = json.loads((data_folder / "qwen3_tokenizer/tokenizer_config.json").read_text())["chat_template"]
    (theirs,), _ = render_jinja_template([TALK], tools=[TOOL], chat_template=template, add_generation_prompt=True)
    assert RENDERER.render(template, _variables(TALK, tools=[TOOL]), "m") == theirs


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), anything, max_size=3), max_size=3))
def test_messages_get_to_the_template_as_they_are(messages: list[dict[str, Any]]) -> None:
    template = "{{ messages | tojson(sort_keys=true) }}"
    (theirs,), _ = render_jinja_template([messages], chat_template=template)
    assert RENDERER.render(template, _variables(messages), "m") == theirs


HOSTILE: Mapping[str, str] = {
    "for ever": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "gigabytes": "{% set x = 'a' * 10000000000 %}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "padding": "{{ '%999999999d' % 1 }}",
    "while compiling": "{{ 10 ** (10 ** 9) }}",
    "while compiling, text": "{{ 'a' * 10 ** 10 }}",
}
BROKEN: Mapping[str, str] = {
    "division": "{{ 1 / 0 }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "syntax": "{% for %}",
    "include": "{% include '/etc/passwd' %}",
    "attribute": "{{ ''.__class__.__mro__ }}",
    "type": "{{ 'a' + 1 }}",
    "raised": "{{ raise_exception('no\u202e\x00\n' * 999) }}",
    "half a surrogate pair": r"{{ '\ud800' }}x",
    "half a surrogate pair of the messages": "{{ messages[0].half }}",
    "deep": "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_without_bounds_is_ended_in_a_sentence_and_the_next_is_rendered(
    renderer: Renderer, name: str
) -> None:
    with pytest.raises(UserError, match=r"^the chat template of m takes more than 256 MiB of memory or 0\.5 seconds"):
        renderer.render(HOSTILE[name], _variables(TALK), "m")
    assert renderer.render("{{ messages[1].content }}", _variables(TALK), "m") == "5"


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_of_a_template_is_a_refusal_on_one_line(renderer: Renderer, name: str) -> None:
    with pytest.raises(TemplateRefusal) as refusal:
        renderer.render(BROKEN[name], _variables([TALK[0] | {"half": "x\udfff"}, TALK[1]]), "m")
    assert 0 < len(str(refusal.value)) <= 200
    assert str(refusal.value).isprintable()
    assert renderer.render("{{ messages[1].content }}", _variables(TALK), "m") == "5"


def test_half_of_a_surrogate_pair_is_named_as_what_cannot_be_tokenized(renderer: Renderer) -> None:
    with pytest.raises(TemplateRefusal, match="it writes half of a surrogate pair, which is not text"):
        renderer.render(r"{{ '\ud83e' }}", _variables(TALK), "m")
    assert renderer.render(r"{{ '\U0001f9ee' }}", _variables(TALK), "m") == "\U0001f9ee"


def test_a_text_beyond_the_limit_is_refused(renderer: Renderer) -> None:
    assert len(renderer.render("{{ 'a' * 10000 }}", _variables(TALK), "m")) == 10_000
    with pytest.raises(UserError, match="makes 10,001 characters of a conversation, and the most are 10,000"):
        renderer.render("{{ 'a' * 10001 }}", _variables(TALK), "m")


@pytest.mark.parametrize(
    "template", [None, 3, ["a"], {"default": "a"}, "a" * 1_000_001], ids=lambda value: type(value).__name__
)
def test_what_is_no_text_is_no_template(renderer: Renderer, template: object) -> None:
    with pytest.raises(UserError, match="must be a text of at most 1,000,000 characters"):
        renderer.render(template, _variables(TALK), "m")


def test_a_process_that_was_killed_while_idle_is_started_again(renderer: Renderer) -> None:
    assert renderer.render("a", {}, "m") == "a"
    for child in psutil.Process().children():
        if MODULE in child.cmdline() and "268435456" in child.cmdline():
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    assert renderer.render("a", {}, "m") == "a"


LONG = "{% for i in range(9000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}done"  # a second or more


def test_a_process_that_is_killed_at_work_is_no_templates_fault() -> None:
    before = set(psutil.Process().children())
    renderer = Renderer()
    with ThreadPoolExecutor(1) as thread:
        rendered = thread.submit(renderer.render, LONG, _variables([]), "a model")
        while not (started := set(psutil.Process().children()) - before):
            time.sleep(0.01)
        (worker,) = started
        while worker.cpu_times().user < 0.5 and not rendered.done():  # its imports take a third of that
            time.sleep(0.01)
        worker.kill()
        assert rendered.result() == "done"
    renderer.close()


def test_the_kernel_ends_a_render_that_nobody_waits_for() -> None:
    process = LineProcess(MODULE, [str(256 << 20), "0.2", "100"], {})
    process.start()
    assert process.exchange(b"", 60.0) is not None
    request = {"template": HOSTILE["for ever"], "variables": {}}
    started = time.monotonic()
    assert process.exchange(json.dumps(request).encode() + b"\n", 60.0) is None
    assert time.monotonic() - started < 60.0
    process.kill()
