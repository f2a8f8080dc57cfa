"""What a request may hold, and that nothing in it is an error of ours."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dagrpo_agents.gateway.requests import MOST_ITEMS, ChatRequest, Refused, read_request

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(**changes: Any) -> ChatRequest:
    return read_request(json.dumps({"model": "m", "messages": [USER]} | changes).encode())


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "only text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "messages.0.tool_calls.0.id"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
        ({"tools": {"f": 1}}, "tools"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"n": 2}, "n is 2"),
        ({"stop": ["\n"]}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(Refused, match=names) as refused:
        read(**changes)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{",
        b"[" * 1_000_000,
        b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read_request(body)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["user", "tool", "text", "function", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "tool_call_id", "id", "function", "name", "arguments", "type", "text"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=3), json_values, json_values)
def test_any_json_is_read_or_refused(messages: list[Any], tools: Any, more: Any) -> None:
    body = json.dumps({"messages": messages, "tools": tools, "stream_options": more, "stop": more}).encode()
    try:
        request = read_request(body)
    except Refused:
        return
    assert all(isinstance(message["content"], str) for message in request.messages)


def test_messages_are_brought_into_the_form_of_chat_templates() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    messages: list[Any] = [
        {"role": "developer", "content": "be brief", "refusal": None},
        {
            "role": "assistant",
            "content": None,
            "audio": None,
            "tool_calls": [CALL | {"function": function, "index": 0}],
        },
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}],
        },
    ]
    assert read(messages=messages).messages == (
        {"role": "system", "content": "be brief"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "one", "tool_call_id": "c"},
    )


def test_no_tools_are_offered_where_none_may_be_chosen() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert read(tools=[tool]).tools == (tool,)
    assert read(tools=[tool], tool_choice="none").tools == ()


def test_what_section_rollout_decides_is_ignored() -> None:
    request = read(temperature=0.0, seed=1, user="me")
    assert request.ignored == ("temperature", "seed")


@pytest.mark.parametrize("name", ["messages", "tools", "stop"])
def test_a_list_that_is_too_long_is_refused_by_its_length(name: str) -> None:
    with pytest.raises(Refused, match=f"{name}.*at most {MOST_ITEMS} items"):
        read(**{name: [1] * (MOST_ITEMS + 1)})


@pytest.mark.parametrize(
    ("head", "item"), [('{"messages":[{"role":"user","content":[', "1"), ('{"messages":[', "{}"), ('{"stop":[', "1")]
)
def test_reading_visits_each_item_once_and_notes_few_of_many_faults(head: str, item: str) -> None:
    """0.4 MB took 2 s when each fault was written down."""
    tail = "]}]}" if "role" in head else "]}"
    bodies = [f"{head}{','.join([item] * count)}{tail}".encode() for count in (1_000, 4_000, 16_000)]
    calls = [_calls_of_reading(body) for body in bodies]
    assert calls[1] <= 4 * calls[0]
    assert calls[2] <= 16 * calls[0]


def _calls_of_reading(body: bytes) -> int:
    """Return the number of function calls, Python's and C's, in which a faulty body is read."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    with pytest.raises(Refused) as refused:
        read_request(body)
    sys.setprofile(None)
    assert isinstance(refused.value.__cause__, ValidationError)
    assert refused.value.__cause__.error_count() < 5
    return sum(event.endswith("call") for event in events)
