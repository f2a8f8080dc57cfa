"""Valid parameters, damaged in any way: each is accepted, or refused in sentences under 500 characters within a second."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.fuzz.inputs import any_values, fuzzed, json_values, refusal

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import with_overrides
from dagrpo.config.presets import composed
from dagrpo.config.schema import Params, parse
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.yaml_text import read_yaml

PRESETS = Path(__file__).parents[3] / "presets"
EXPERIMENTS = ("arithmetic_tiny", "worlds_tiny", "qwen3_4b_dapo_tool")
Keys = tuple[str, ...]


@cache
def _valid(name: str) -> Params:
    return composed([name], PRESETS)


def _places(values: dict[str, Any], above: Keys = ()) -> list[Keys]:
    found: list[Keys] = []
    for key, value in values.items():
        found.append((*above, key))
        found += _places(value, (*above, key)) if isinstance(value, dict) else []
    return found


def _damage(values: dict[Any, Any], place: Keys, how: str, value: Any) -> None:
    section = values
    for key in place[:-1]:
        section = section[key] if isinstance(section, dict) and isinstance(section.get(key), dict) else {}
    if place[-1] not in section:  # gone with an earlier damage
        return
    old = section.pop(place[-1])
    if how == "replace":
        section[place[-1]] = value
    elif how == "rename" and isinstance(value, str | int | None):
        section[value] = old
    elif how == "nest":
        section[place[-1]] = {place[-1]: old}
    elif how == "add":
        section |= {place[-1]: old, "added": value}
    elif how == "list":
        section[place[-1]] = [old, value]


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """The parameters of an experiment with one to three damages."""
    values = copy.deepcopy(_valid(draw(st.sampled_from(EXPERIMENTS))).model_dump())
    for place in draw(st.lists(st.sampled_from(_places(values)), min_size=1, max_size=3)):
        how = draw(st.sampled_from(["delete", "replace", "replace", "rename", "nest", "add", "list"]))
        _damage(values, place, how, draw(any_values))
    return values


_FRAGMENTS = [
    *("&a ", "*a", "<<: *a", "!!python/object:os.system ", "!!float ", "!!binary ", "!!set ", "? ", "- ", "---\n", "...\n", "%YAML 1.1\n"),
    *("\t", "\0", "\ufeff", "\u202e", "\x85", "[" * 500, "{a: " * 300, "'", '"', ": ", "#", "|\n", ">-\n", "\n", "\r"),
    *(".nan", "-.inf", "1e999", "1_000", "010", "1:30", "yes", "2024-01-01", "~", "9" * 5000, "0x" + "f" * 900, "x" * 50_000),
]  # fmt: skip


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """The text of a params.yaml, with spans of it cut out, copied or overwritten."""
    text = params_yaml(_valid(draw(st.sampled_from(EXPERIMENTS))))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 8, 200])))
        text = text[:start] + draw(st.sampled_from([*_FRAGMENTS, "", text[start:end] * 2])) + text[end:]
    return text.encode(draw(st.sampled_from(["utf-8"] * 9 + ["utf-16"])), "surrogatepass")


@fuzzed
@given(damaged())
def test_damaged_values_are_refused_or_accepted(values: dict[str, Any]) -> None:
    if not refusal(lambda: parse_with_tasks(values)):
        params = parse_with_tasks(values)
        assert parse(params.model_dump()) == params


@fuzzed
@given(damaged_files())
def test_damaged_files_are_refused_or_mean_what_their_text_says(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "params.yaml"
    path.write_bytes(content)
    if not refusal(lambda: parse_with_tasks(read_yaml(path))):
        params = parse_with_tasks(read_yaml(path))
        path.write_text(params_yaml(params))
        assert parse(read_yaml(path)) == params


_COMMAND_LINE = st.one_of(json_values, st.text(st.sampled_from("[]{},:'\"#&*!%- \n\t0a"), max_size=40))
_NAMES = ["training__steps", "experiment__seeds", "algorithm__loss", "a__b", "data", "__", "x" * 5000, "model__"]
_KEYS = st.one_of(st.sampled_from(_NAMES), st.text())


@fuzzed
@given(st.dictionaries(_KEYS, _COMMAND_LINE, min_size=1, max_size=3))
def test_values_of_the_command_line_are_refused_or_accepted(config: dict[str, Any]) -> None:
    values = _valid("arithmetic_tiny").model_dump()
    refusal(lambda: parse_with_tasks(with_overrides(values | config)))
