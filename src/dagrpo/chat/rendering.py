"""Render chat messages to prompt tokens, and decode completions.

A template is a program that came with a model. Jinja's sandbox keeps it from files and from Python's attributes; it does not bound time or
memory (docs/SECURITY.md). The environment is built from Jinja alone, and gives the texts of transformers, whose import takes two seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST_TEMPLATE = 1_000_000  # characters; published ones have up to 30,000
LONGEST_TEXT = 20_000_000  # characters: some five million tokens
_LONGEST_REASON = 200  # characters
_LONGEST_MESSAGE = 400  # characters of an error that are looked at
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


class TemplateRefusal(Exception):
    """Error of a template that raises over these messages, writes no text, or is invalid. The message is one line."""


def render_template(template: Any, variables: Mapping[str, Any], name: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text that a template writes; `name` is the model's, for error messages. May be called by many threads.

    Raises TemplateRefusal if the template raises an error, or writes half of a surrogate pair. Raises UserError if it is no text, writes
    more than `longest` characters, or needs more memory than there is.
    """
    if not isinstance(template, str) or len(template) > LONGEST_TEMPLATE:
        raise UserError(
            f"the chat template of {name} must be a text of at most {LONGEST_TEMPLATE:,} characters: correct it."
        )
    plain = json.loads(json.dumps(variables, default=dict))  # `tojson` knows no other types
    try:
        text = _text(_compiled(template), plain, longest)
    except MemoryError:
        raise UserError(
            f"the chat template of {name} needs more memory than there is to render a conversation: use another template."
        ) from None
    except Exception as error:  # noqa: BLE001  a stranger's program may raise anything
        reason = (str(error) or type(error).__name__)[:_LONGEST_MESSAGE]
        raise TemplateRefusal(one_line(reason, _LONGEST_REASON)) from None
    if text is None:
        raise UserError(
            f"the chat template of {name} makes more than {longest:,} characters of a conversation: use another template."
        )
    if _HALF_A_PAIR.search(text):  # no tokenizer takes it
        raise TemplateRefusal("it writes half of a surrogate pair, which is not text")
    return text


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    return _ENVIRONMENT.from_string(template)


def _text(template: Template, variables: Mapping[str, Any], longest: int) -> str | None:
    """Return the whole text; None once it has more than `longest` characters."""
    pieces, length = [], 0
    for piece in template.generate(variables):
        pieces.append(piece)
        length += len(piece)
        if length > longest:
            return None
    return "".join(pieces)


class _Generation(Extension):
    """Jinja extension for {% generation %}, which marks the policy's text: here it is text like any other."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_unchanged"), [], [], body).set_lineno(line)

    def _unchanged(self, caller: Any) -> Any:
        return caller()


def _chat_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise TemplateError(message)


_ENVIRONMENT = _chat_environment()


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[str, tuple[int, ...]]:
    """Return the prompt as the tokenizer's chat template writes it, and its tokens. Raises UserError without a template.

    tools: OpenAI function schemas; a template without support for tools leaves them out.
    """
    text = prompt_text(tokenizer, messages, tools)
    return text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the prompt as text, ready to be tokenized unchanged. Raises UserError and TemplateRefusal."""
    return template_text(tokenizer, messages, tools, add_generation_prompt=True)


def template_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
) -> str:
    """Return what `tokenizer.apply_chat_template` gives, within limits of characters."""
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer of {tokenizer.name_or_path} has no chat template: use a model that has one.")
    offered: Any = [dict(tool) for tool in tools] or None
    variables = {
        **tokenizer.special_tokens_map,
        "messages": [dict(message) for message in messages],
        "tools": offered,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    return render_template(chosen_template(tokenizer, offered), variables, tokenizer.name_or_path)


def chosen_template(tokenizer: PreTrainedTokenizerBase, tools: Any = None) -> str:
    """Return the tokenizer's chat template, of several the one that fits `tools`. Raises UserError without one."""
    try:
        template: str = tokenizer.get_chat_template(tools=tools)
    except (ValueError, TypeError, AttributeError):  # several, and none of them the default
        template = ""
    if not isinstance(template, str) or not template:
        raise UserError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template that is a text: use a model that has one."
        )
    return template


def completion_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the completion's text without special tokens; nothing is cleaned up."""
    # Of an array: transformers would look at each item of a list.
    text = tokenizer.decode(np.array(token_ids, np.int64), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text
