"""Calls in every family: what is well formed comes back exactly, and what is not is told and never lost."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.tool_calls.tools import TOOLS, WRAPPED

from dagrpo.chat.tool_calls import MOST_CALLS, Attempt, attempts_in
from dagrpo.chat.tool_calls.families import CALLS, qwen3_coder

GOOD = '{"q": "cats", "x": 3}'
FAMILIES = CALLS.own_names()
MARKERS = (
    "</tool_call>",
    "<tool_call>",
    "[TOOL_CALLS] [",
    "]",
    "<|python_tag|>",
    "};{",
    "</function>",
    '"',
    "\\",
    "\n",
    "é🙂",
)
TEXTS = st.lists(
    st.one_of(st.sampled_from(MARKERS), st.text(st.characters(exclude_categories=["Cs"]))), max_size=6
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def read(family: str, text: str) -> list[Attempt]:
    return attempts_in(text, CALLS.get(family), TOOLS)


def only(family: str, text: str) -> Attempt:
    attempts = read(family, text)
    assert len(attempts) == 1
    return attempts[0]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["search", "calc"]), TEXTS, VALUES), min_size=1, max_size=3))
@pytest.mark.parametrize("family", WRAPPED)
def test_what_is_spelled_is_read_back(family: str, calls: list[tuple[str, str, Any]]) -> None:
    wanted = [(name, {"q": text, "more": value}) for name, text, value in calls]
    text = CALLS.get(family).spell(wanted)
    attempts = read(family, text)
    assert [(attempt.name, attempt.arguments, attempt.status) for attempt in attempts] == [
        (*call, "ok") for call in wanted
    ]
    assert attempts[-1].end == len(text)


@given(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "</parameter>" not in text), st.integers())
def test_parameters_in_tags_are_read_back_with_the_types_of_the_schema(text: str, number: int) -> None:
    spelled = CALLS.get("qwen3_coder").spell([("search", {"q": text, "x": number})])
    call = only("qwen3_coder", spelled)
    assert (call.name, call.arguments, call.status) == ("search", {"q": text, "x": number}, "ok")


MALFORMED = {
    "well formed": (GOOD, "ok"),
    "no body": ("", "undecodable"),
    "missing brace": ('{"q": "cats"', "undecodable"),
    "single quotes": ("{'q': 'cats'}", "undecodable"),
    "trailing comma": ('{"q": "cats",}', "undecodable"),
    "words of Python": ('{"q": None, "x": True}', "undecodable"),
    "arguments a list": ("[1, 2]", "wrong_arguments"),
    "arguments a text": (json.dumps(GOOD), "wrong_arguments"),
    "wrong type and missing key": ('{"x": "three"}', "wrong_arguments"),
    "raw newline in a text": ('{"q": "a\nb"}', "undecodable"),
    "NaN": ('{"q": "a", "x": NaN}', "undecodable"),
    "a number too large": ('{"q": "a", "x": 1e999}', "undecodable"),
    "half of a surrogate pair": ('{"q": "\\ud800"}', "undecodable"),
    "3,000 brackets": ("[" * 3000 + "]" * 3000, "undecodable"),
    "100 brackets": ('{"q": ' + "[" * 100 + "]" * 100 + "}", "undecodable"),
    "5,000 digits": ('{"q": "a", "x": ' + "9" * 5000 + "}", "undecodable"),
}


@pytest.mark.parametrize("family", WRAPPED)
@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_call_is_one_call_with_a_status_and_a_sentence(family: str, case: str) -> None:
    arguments, status = MALFORMED[case]
    text = WRAPPED[family]("search", arguments)
    call = only(family, f"Let me see. {text}")
    assert call.status in (
        status,
        "unclosed" if case in ("no body", "missing brace") and family != "hermes" else status,
    )
    assert bool(call.fault) == (call.status != "ok")
    assert len(call.fault) < 500
    assert (call.start, call.end) == (len("Let me see. "), len("Let me see. ") + len(text))


@pytest.mark.parametrize("family", WRAPPED)
def test_names_that_no_tool_has_and_no_name_at_all_are_told_apart(family: str) -> None:
    unknown = only(family, WRAPPED[family]("nosuch", GOOD))
    assert (unknown.status, unknown.name, unknown.arguments) == ("unknown_tool", "nosuch", json.loads(GOOD))
    assert unknown.fault == "There is no tool `nosuch`; the tools are: search, calc."
    assert only(family, WRAPPED[family]("", GOOD)).status == "missing_name"


NO_CALLS = ("[1, 2]", '"hello"', "5", "null", "{}", '{"name": ["a"]}', '{"name": {"a": 1}}')
FORMS = {"hermes": "<tool_call>{}</tool_call>", "llama3": "<|python_tag|>{}", "mistral": "[TOOL_CALLS]{}"}


@pytest.mark.parametrize("body", NO_CALLS)
@pytest.mark.parametrize("family", FORMS)
def test_json_that_is_no_call_is_a_broken_call(family: str, body: str) -> None:
    attempts = read(family, FORMS[family].format(body))
    assert attempts
    assert all(call.status in ("undecodable", "missing_name") for call in attempts)


def test_a_duplicate_key_counts_as_json_counts_it() -> None:
    assert only("hermes", WRAPPED["hermes"]("search", '{"q": "a", "q": "b"}')).arguments == {"q": "b"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_cut_off_anywhere_is_one_call_that_says_so(family: str) -> None:
    text = CALLS.get(family).spell([("search", {"q": "cats", "x": 3})])
    opening = next((each for each in CALLS.get(family).openings if text.startswith(each)), '{"name":')
    for end in range(len(opening), len(text)):
        call = only(family, text[:end])
        assert call.status == "unclosed", text[:end]
        assert call.end == end


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder"])
def test_a_broken_call_takes_nothing_of_the_next_one(family: str) -> None:
    good = CALLS.get(family).spell([("search", {"q": "cats"})])
    for text in ("<tool_call>\n" + good, "<tool_call>{\n" + good, "<tool_call>\n{]</tool_call>" + good):
        first, second = read(family, text)
        assert first.status in ("unclosed", "undecodable")
        assert (second.status, second.arguments) == ("ok", {"q": "cats"})
        assert text[second.start : second.end] == good


def test_something_between_the_json_and_the_closing_marker_is_told() -> None:
    call = only("hermes", '<tool_call>{"name": "search", "arguments": {"q": "a"}} and more</tool_call>')
    assert (call.status, call.fault) == ("undecodable", "Between the call and </tool_call> stands something else.")


def test_mistral_writes_calls_in_two_ways() -> None:
    named = read("mistral", '[TOOL_CALLS]search[ARGS]{"q": "a"}[TOOL_CALLS]calc[ARGS]{"q": "b"}')
    assert [(call.name, call.arguments) for call in named] == [("search", {"q": "a"}), ("calc", {"q": "b"})]
    assert only("mistral", "[TOOL_CALLS] []").status == "undecodable"
    assert only("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"q": "a"}}').status == "unclosed"


@pytest.mark.parametrize("family", FAMILIES)
def test_of_thousands_of_calls_each_is_refused_or_read(family: str) -> None:
    opening = CALLS.get(family).openings[0]
    attempts = read(family, opening * 5_000)
    assert len(attempts) == 5_000
    assert all(call.status in ("unclosed", "undecodable") for call in attempts)
    assert attempts[MOST_CALLS].fault == f"A turn may hold {MOST_CALLS} calls; this is one more and was not read."


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("body", ["[", '{"a":', "9", '["', "<function=f><parameter=p>", "</parameter>", "]", " "])
def test_a_megabyte_after_a_marker_is_one_call_and_takes_no_time(family: str, body: str) -> None:
    text = CALLS.get(family).openings[0] + body * (1_000_000 // len(body))
    attempts = read(family, text)
    assert len(attempts) == 1
    assert attempts[0].status != "ok"


PIECES = (*MARKERS, '{"name": "search", "arguments": {"q": "a"}}', "<function=f>", "<parameter=q>", "[ARGS]", ";", " ")


@given(st.lists(st.sampled_from(PIECES) | st.text(), max_size=20).map("".join))
@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_raises_and_no_marker_is_lost(family: str, text: str) -> None:
    attempts = read(family, text)
    end, outside = 0, ""
    for attempt in attempts:
        assert end <= attempt.start < attempt.end <= len(text)
        outside += text[end : attempt.start] + "\0"
        end = attempt.end
    outside += text[end:]
    assert not any(opening in outside for opening in CALLS.get(family).openings)


def _coder(value: str, schema: dict[str, Any], **more: Any) -> Attempt:
    parameters = {"type": "object", "properties": {"v": schema}, **more}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    text = f"<tool_call>\n<function=f>\n<parameter=v>\n{value}\n</parameter>\n</function>\n</tool_call>"
    (call,) = attempts_in(text, CALLS.get("qwen3_coder"), [tool])
    return call


MAYBE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
LEVEL = {"level": {"type": "integer", "enum": [1, 2, 3]}}


@pytest.mark.parametrize(
    ("value", "schema", "read_as"),
    [
        *(
            ("True", {"type": "boolean"}, True),
            ("False", {"type": "boolean"}, False),
            ("true", {"type": "boolean"}, True),
        ),
        *(
            ("None", MAYBE, None),
            ("null", MAYBE, None),
            ("2024", MAYBE, "2024"),
            ("[1]", MAYBE, "[1]"),
            ("", MAYBE, ""),
        ),
        *(("None", {"type": "string"}, "None"), ("null", {"type": "string"}, "null")),
        *(
            ("2", {"type": "integer", "enum": [1, 2, 3]}, 2),
            ("2", {"enum": [1, "2"]}, "2"),
            ("1", {"enum": [1, "2"]}, 1),
        ),
        *(("2024", {"type": ["string", "null"]}, "2024"), ("None", {"type": ["integer", "null"]}, None)),
        *(("7", {"type": ["integer", "string"]}, "7"), ("7", {"type": ["integer", "null"]}, 7), ("7", {"const": 7}, 7)),
        *(("2", {"$ref": "#/$defs/level"}, 2), ('{"a": None}', {"type": "object"}, '{"a": None}')),
        *(
            ("True", {"type": "string"}, "True"),
            ("True", MAYBE, "True"),
            ("0.5", {"type": "number"}, 0.5),
            ("x", {}, "x"),
        ),
    ],
)
def test_qwen3_coder_reads_a_value_by_its_schema(value: str, schema: dict[str, Any], read_as: Any) -> None:
    call = _coder(value, schema, **{"$defs": LEVEL})
    assert (call.arguments, type((call.arguments or {})["v"])) == ({"v": read_as}, type(read_as))
    assert call.status == ("wrong_arguments" if schema.get("type") == "object" else "ok")


@pytest.mark.parametrize("properties", [[None], "v", 5, None, {"v": 5}, {"v": []}])
def test_qwen3_coder_reads_a_text_where_a_schema_is_invalid(properties: Any) -> None:
    assert _coder("2", {}, properties=properties).arguments == {"v": "2"}


@pytest.mark.parametrize("between", ["\n", "", " ", "</parameter", "\n</param>\n", "\n</parameter >\n"])
def test_a_parameter_without_its_end_swallows_no_other(between: str) -> None:
    text = f"<tool_call><function=search><parameter=q>a{between}<parameter=x>3</parameter></function></tool_call>"
    call = only("qwen3_coder", text)
    assert (call.status, call.arguments or None) == ("undecodable", None)
    assert "The parameter q is not closed" in call.fault


CALL = '{"name": "search", "parameters": {"q": "a"}}'


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        ('{"type": "function", "name": "search", "parameters": {"q": "a"}}', ["ok"]),
        ('{"parameters": {"q": "a"}, "name": "search"}', ["ok"]),
        *((CALL + between + CALL, ["ok", "ok"]) for between in ("\n", "; ", ", ", "\n\n", "", " \n ;\n")),
        (f"{CALL}\nThat is all.", ["ok"]),
        (f'{CALL}\n{{"answer": 42}}', ["ok"]),
        ('{"type": "function", "function": {"name": "search", "parameters": {"q": "a"}}}', ["missing_name"]),
        ("{'name': 'search', 'parameters': {'q': 'a'}}", ["undecodable"]),
        (f'{CALL}\n{{"name": "search", "parameters": {{"q": ', ["ok", "unclosed"]),
        ('{"type": "triangle", "sides": 3}', []),
        ('{"function": "x + 1"}', []),
        ('{"answer": 42}', []),
        ('The "name" is {"name": "x"}', []),
    ],
)
def test_llama_reads_what_begins_as_a_call(text: str, statuses: list[str]) -> None:
    assert [call.status for call in read("llama3", text)] == statuses


@pytest.mark.parametrize("text", [CALL + " " * 200_000, "{" + " " * 200_000, CALL + (" ," * 100_000), CALL * 20_000])
def test_a_long_text_after_a_call_of_llama_is_at_most_the_calls_of_a_turn(text: str) -> None:
    assert len(read("llama3", text)) <= MOST_CALLS + 1


def test_a_parameter_given_twice_is_refused_and_not_checked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "<tool_call><function=search>" + "<parameter=x>1</parameter>" * 20_000 + "</function></tool_call>"
    checks: list[object] = []

    def count(arguments: object, schema: object) -> str:
        checks.append(arguments)
        return ""

    monkeypatch.setattr(qwen3_coder, "fault_of", count)
    call = only("qwen3_coder", text)
    assert (call.status, call.fault) == ("undecodable", "The parameter x is there twice.")
    assert len(checks) == 1
