"""Chat templates: the text that transformers gives, or an error on one line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hostile import anything
from transformers.utils.chat_template_utils import render_jinja_template

from dagrpo.chat.rendering import TemplateRefusal, render_template
from dagrpo.core.errors import UserError
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


@pytest.mark.parametrize(
    "template", [CHAT_TEMPLATE, CHAT_TEMPLATE_WITH_TOOLS, MARKED], ids=["plain", "tools", "marked"]
)
def test_the_text_is_the_one_that_transformers_gives(template: str) -> None:
    for tools in (None, [TOOL]):
        (theirs,), _ = render_jinja_template(
            [TALK], tools=tools, chat_template=template, add_generation_prompt=True, eos_token="</s>"
        )
        assert render_template(template, _variables(TALK, tools=tools, eos_token="</s>"), "m") == theirs


def test_the_text_of_a_published_template_is_the_one_that_transformers_gives(data_folder: Path) -> None:
    template = json.loads((data_folder / "qwen3_tokenizer/tokenizer_config.json").read_text())["chat_template"]
    (theirs,), _ = render_jinja_template([TALK], tools=[TOOL], chat_template=template, add_generation_prompt=True)
    assert render_template(template, _variables(TALK, tools=[TOOL]), "m") == theirs


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), anything, max_size=3), max_size=3))
def test_messages_get_to_the_template_as_they_are(messages: list[dict[str, Any]]) -> None:
    template = "{{ messages | tojson(sort_keys=true) }}"
    (theirs,), _ = render_jinja_template([messages], chat_template=template)
    assert render_template(template, _variables(messages), "m") == theirs


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


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_of_a_template_is_a_refusal_on_one_line(name: str) -> None:
    with pytest.raises(TemplateRefusal) as refusal:
        render_template(BROKEN[name], _variables([TALK[0] | {"half": "x\udfff"}, TALK[1]]), "m")
    assert 0 < len(str(refusal.value)) <= 200
    assert str(refusal.value).isprintable()
    assert render_template("{{ messages[1].content }}", _variables(TALK), "m") == "5"


def test_a_text_beyond_the_limit_is_refused() -> None:
    assert len(render_template("{{ 'a' * 10000 }}", {}, "m", longest=10_000)) == 10_000
    with pytest.raises(UserError, match="makes more than 10,000 characters of a conversation: use another template"):
        render_template("{{ 'a' * 10001 }}", {}, "m", longest=10_000)


def test_a_template_that_writes_for_hours_ends_at_the_limit() -> None:
    """It would write 40 GB."""
    template = "{% for i in range(99999) %}{% for j in range(99999) %}aaaa{% endfor %}{% endfor %}"
    with pytest.raises(UserError, match="makes more than 10,000 characters"):
        render_template(template, {}, "m", longest=10_000)


@pytest.mark.parametrize("template", ["{{ 'a' * 10 ** 17 }}", "{% set n = 10 ** 17 %}{{ 'a' * n }}"])
def test_a_template_that_no_memory_is_enough_for_is_an_error(template: str) -> None:
    with pytest.raises(UserError, match="needs more memory than there is to render a conversation"):
        render_template(template, {}, "m")


def test_a_template_changes_no_message() -> None:
    with pytest.raises(TemplateRefusal, match="unsafe"):
        render_template("{{ messages.append(1) }}", _variables(TALK), "m")


@pytest.mark.parametrize(
    "template", [None, 3, ["a"], {"default": "a"}, "a" * 1_000_001], ids=lambda value: type(value).__name__
)
def test_what_is_no_text_is_no_template(template: object) -> None:
    with pytest.raises(UserError, match="must be a text of at most 1,000,000 characters"):
        render_template(template, _variables(TALK), "m")
