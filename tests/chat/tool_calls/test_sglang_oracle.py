"""SGLang's own parsers read well-formed calls as ours do. Their import takes up to a minute, so they are asked once."""

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


@pytest.mark.server
def test_well_formed_calls_are_read_as_sglang_reads_them() -> None:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    offered = [Tool(**tool) for tool in TOOLS]
    for family in CALLS.own_names():
        for calls in ([("search", arguments)] for arguments in ARGUMENTS):
            text = CALLS.get(family).spell(calls)
            _, theirs = FunctionCallParser(offered, family).parse_non_stream(text)
            ours = [(attempt.name, attempt.arguments) for attempt in attempts_in(text, CALLS.get(family), TOOLS)]
            assert ours == calls, family
            assert [(call.name, json.loads(call.parameters)) for call in theirs] == calls, family
        text = CALLS.get(family).spell([("search", ARGUMENTS[0]), ("calc", ARGUMENTS[1])])
        _, theirs = FunctionCallParser(offered, family).parse_non_stream(text)
        assert [call.name for call in theirs] == ["search", "calc"], family
