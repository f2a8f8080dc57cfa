"""No parameter, a plug-in's included, takes a number without bounds, or a text or list without an end."""

import reprlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.everyday import everyday

from dagrpo.config.schema import Params, all_keys, parse
from dagrpo.core.errors import UserError
from dagrpo.core.section import Section

_SCALARS = {
    "integer": (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    "number": (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    "string": (("maxLength",),),
    "array": (("maxItems",),),
}


def _unbounded(schema: dict[str, Any], key: str = "") -> Iterator[str]:
    """The dotted keys under which a value may be as large as it likes."""
    if "enum" in schema or "const" in schema:
        return
    for bounds in _SCALARS.get(schema.get("type", ""), ()):
        if not any(bound in schema for bound in bounds):
            yield f"{key}: no {bounds[0]}"
    if schema.get("additionalProperties", False) is not False and "maxProperties" not in schema:
        yield f"{key}: no maxProperties"
    for name, inner in _inside(schema):
        yield from _unbounded(inner, f"{key}.{name}")


def _inside(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from schema.get("properties", {}).items()
    yield from schema.get("$defs", {}).items()
    for name in ("anyOf", "oneOf", "allOf"):
        yield from ((name, option) for option in schema.get(name, ()))
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield name, schema[name]


def test_every_number_text_and_list_has_bounds() -> None:
    assert list(_unbounded(Params.model_json_schema())) == []


def test_the_walk_reaches_the_plug_ins_and_sees_what_is_missing() -> None:
    class Forgetful(Section):
        number: float
        several: list[str]
        free: dict[str, Any]

    found = list(_unbounded(Forgetful.model_json_schema()))
    assert found == [
        ".number: no minimum",
        ".number: no maximum",
        ".several: no maxItems",
        ".free: no maxProperties",
    ]
    schema = str(Params.model_json_schema())
    assert all(key in schema for key in ("memory_mb", "clip_low", "per_turn", "taskset", "functions"))


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**400, 1 << 20_000, True, "1e999"],
    ids=["nan", "infinity", "401 digits", "6,000 digits", "true", "exponent"],
)
def test_a_float_is_finite_also_where_a_plug_in_forgets_its_bounds(value: object) -> None:
    class Forgetful(Section):
        number: float = 0.0

    with pytest.raises(ValueError, match="number"):
        Forgetful.model_validate({"number": value})


_HOSTILE = [10**400, float("nan"), -float("inf"), "x" * 100_000, [1] * 1001, b"x", {"a": 1}]


def _refusal(key: str, value: Any) -> str:
    """What is said of a value under a dotted key; "" where it is accepted."""
    values = value
    for part in reversed(key.split(".")):
        values = {part: values}
    try:
        parse(values)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("value", everyday(_HOSTILE[:1], _HOSTILE), ids=reprlib.repr)
def test_no_key_takes_what_is_beyond_all_bounds(value: object) -> None:
    """Free mappings apart, which take a small one."""
    refusals = {key: _refusal(key, value) for key in all_keys()}
    assert all(len(sentence) < 500 for refusal in refusals.values() for sentence in refusal.splitlines())
    accepted = [key for key, refusal in refusals.items() if not refusal]
    assert accepted == (["data.verifiers.parameters"] if value == {"a": 1} else [])


def test_of_many_mistakes_the_first_ten_are_told_and_the_others_counted() -> None:
    with pytest.raises(UserError) as caught:
        parse({f"key{number}": number for number in range(1000)})
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("params.yaml: unknown key `key0`")
    assert lines[-1] == "There are 990 more mistakes."
