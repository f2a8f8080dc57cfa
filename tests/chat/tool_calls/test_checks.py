"""Arguments are checked by schemas that may be anybody's."""

import http.server
import threading
from typing import Any

import pytest

from dagrpo.chat.tool_calls.checks import fault_of

TOO_MUCH = "The arguments cannot be checked (TooMuchWork)."


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": 5},
        {"properties": 5},
        {"properties": {"x": None}},
        {"patternProperties": {"(": {}}},
        {"$ref": "#/nowhere"},
        {"required": 5},
    ],
)
def test_a_schema_that_is_none_forbids_nothing(schema: dict[str, Any]) -> None:
    assert fault_of({"x": 5}, schema) == ""


def test_nothing_is_fetched_for_a_schema() -> None:
    asked: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fault_of({"x": 5}, {"$ref": f"http://127.0.0.1:{server.server_port}/schema"})
        server.shutdown()
    assert asked == []


def _nested(keyword: str) -> dict[str, Any]:
    """2^40 ways through it."""
    levels = {f"level{n}": {keyword: [{"$ref": f"#/$defs/level{n + 1}"}] * 2} for n in range(40)}
    return {"$defs": levels | {"level40": {"minimum": 0}}, "properties": {"x": {"$ref": "#/$defs/level0"}}}


_SLOW_PATTERN: dict[str, Any] = {"pattern": "^(a+)+$"}
_SLOW_NAMES: dict[str, Any] = {"patternProperties": {"^(a+)+$": {}}}
_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": _SLOW_PATTERN}},
        {"properties": {"x": _DRAFT | _SLOW_PATTERN}},
        _DRAFT | {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": _DRAFT | {"properties": {"x": _SLOW_PATTERN}}}},
        _SLOW_NAMES,
        _SLOW_NAMES | {"additionalProperties": False},
        _SLOW_NAMES | {"unevaluatedProperties": False},
        {"propertyNames": _SLOW_PATTERN},
        {"properties": {"list": {"uniqueItems": True}}},
        {"properties": {"list": {"items": {"allOf": [{"not": {"const": n}} for n in range(1000)]}}}},
    ],
)
def test_no_schema_takes_long(schema: dict[str, Any]) -> None:
    name = "a" * 60 + "!"
    assert fault_of({"x": name, name: 1, "list": [{"n": n} for n in range(9000)]}, schema) in ("", TOO_MUCH)


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_a_schema_that_never_ends_refuses_the_call(keyword: str) -> None:
    assert fault_of({"x": -1}, _nested(keyword)) == TOO_MUCH


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"pattern": "a", "mode": "fast", "many": [1, 2]}, ""),
        ({"pattern": "a", "many": list(range(10_000))}, ""),
        ({"pattern": 1}, "at pattern: 1 is not of type 'string'"),
        ({}, "'pattern' is a required property"),
        ({"pattern": "a", "mode": "slow"}, "at mode: 'slow' is not one of ['fast']"),
        ({"pattern": "a", "many": [1, "b"]}, "at many[1]: 'b' is not of type 'integer'"),
        ({"pattern": "a", "other": 1}, "Additional properties are not allowed ('other' was unexpected)"),
        ({"pattern": "a", "tree": {"children": [{"children": [5]}]}}, "tree.children[0].children[0]: 5 is not of"),
        ({"pattern": "a", "either": []}, "at either: [] is not valid under any of the given schemas"),
    ],
)
def test_what_policies_learn_from_is_told(arguments: dict[str, Any], fault: str) -> None:
    tree = {"type": "object", "properties": {"children": {"items": {"$ref": "#/$defs/tree"}}}}
    schema = _DRAFT | {
        "$id": "https://example.org/tool",
        "$defs": {"tree": tree},
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "mode": {"enum": ["fast"]},
            "many": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "tree": {"$ref": "#/$defs/tree"},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert fault in fault_of(arguments, schema)
    assert bool(fault) == bool(fault_of(arguments, schema))
