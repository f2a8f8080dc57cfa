"""SGLang's own parsers read well-formed calls as ours do, and lose or bend others, which is why ours exist.

Their import takes up to a minute.
"""

import json
from typing import Any

import pytest
from tests.chat.tool_calls.tools import TOOLS

from dagrpo.chat.tool_calls import attempts_in
from dagrpo.chat.tool_calls.families import CALLS

ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"q": "cats"},
    {"q": "", "x": 3},
    {"q": "Größe 数学 🙂", "x": -12},
    {"q": 'say "hi"\\ \n twice', "x": 10**12},
)
pytestmark = pytest.mark.server


def _theirs(family: str, text: str) -> list[tuple[str | None, Any]]:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    _, calls = FunctionCallParser([Tool(**tool) for tool in TOOLS], family).parse_non_stream(text)
    return [(call.name, json.loads(call.parameters)) for call in calls]


def _ours(family: str, text: str) -> list[tuple[str, Any]]:
    return [(each.name, each.arguments) for each in attempts_in(text, CALLS.get(family), TOOLS) if each.status == "ok"]


@pytest.mark.parametrize("family", CALLS.own_names())
def test_well_formed_calls_are_read_as_sglang_reads_them(family: str) -> None:
    for calls in (
        *([("search", arguments)] for arguments in ARGUMENTS),
        [("search", {"q": "a"}), ("calc", {"q": "b"})],
    ):
        text = CALLS.get(family).spell(calls)
        assert _ours(family, text) == _theirs(family, text) == calls


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder"])
def test_a_closing_marker_within_an_argument_ends_a_call_for_sglang_alone(family: str) -> None:
    call = ("search", {"q": "a </tool_call> b"})
    text = CALLS.get(family).spell([call])
    assert _ours(family, text) == [call] != _theirs(family, text)


@pytest.mark.parametrize("family", CALLS.own_names())
def test_a_call_that_is_cut_off_is_not_told_by_sglang(family: str) -> None:
    text = CALLS.get(family).spell([("search", {"q": "cats", "x": 3})])[:-20]
    assert [each.status for each in attempts_in(text, CALLS.get(family), TOOLS)] == ["unclosed"]
    assert _theirs(family, text) == ([("search", {"q": "cats", "x": 3})] if family == "qwen3_coder" else [])
