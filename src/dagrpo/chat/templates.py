"""Render models' chat templates as transformers does, within limits of characters.

A template is a program that came with a model. Jinja's sandbox keeps it from files and from Python's attributes; it does not
bound time or memory (docs/SECURITY.md). The environment is built from Jinja alone, and gives the same text as transformers, whose
import takes two seconds that every stage with a model would pay.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line

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
