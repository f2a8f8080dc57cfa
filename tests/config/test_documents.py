"""What is generated from the schema is what the schema says, and no key is dead."""

import ast
import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import pytest
import yaml
from docs.site.pages import parameters_page

from dagrpo.algorithms.advantages import OverBatch
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.terms import Weighed
from dagrpo.config import documents
from dagrpo.config.schema import Params, parse, read_params
from dagrpo.core.plugin_sections import Choice, Chosen, Several, config_of
from dagrpo.core.plugins import Plugins
from dagrpo.core.section import Section
from dagrpo.engine.config import EngineConfig
from dagrpo.rewards.components import Weighted
from dagrpo.rollout.agents import Limits

ROOT = Path(__file__).parents[2]


def test_the_shipped_params_yaml_is_what_the_schema_writes() -> None:
    assert (ROOT / "params.yaml").read_text() == documents.params_yaml(Params())


def test_the_json_schema_and_the_table_are_in_sync() -> None:
    assert (ROOT / documents.SCHEMA_PATH).read_text() == documents.json_schema()
    assert (ROOT / "docs/parameters.md").read_text() == parameters_page()


def test_params_yaml_reads_back_as_the_same_parameters(tmp_path: Path) -> None:
    params = parse({"training": {"learning_rate": 3e-7}, "data": {"mirror": "on"}, "model": {"name": "1e5"}})
    path = tmp_path / "params.yaml"
    path.write_text(documents.params_yaml(params))
    assert read_params(path) == params


def test_params_yaml_leaves_out_sections_that_nothing_selected_reads_unless_they_were_changed() -> None:
    def data(values: dict[str, Any]) -> set[str]:
        written = yaml.safe_load(documents.params_yaml(parse(values)))
        return {name for name in ("arithmetic", "shapes") if name in written["data"]} | set(written["runtime"])

    shapes = {"train": "shapes", "evaluate": ["shapes"], "tasks": ["shapes"]}
    assert data({}) & {"arithmetic", "shapes", "teacher"} == {"arithmetic"}
    assert data({"experiment": shapes}) & {"arithmetic", "shapes"} == {"shapes"}
    assert "shapes" in data({"data": {"shapes": {"test": 20}}})
    assert "teacher" in data(
        {"algorithm": {"teacher": {"source": "initial"}, "terms": {"distillation": {"coefficient": 0.1}}}}
    )


def test_every_plug_in_has_its_place_in_the_page_and_in_the_json_schema() -> None:
    table, schema = parameters_page(), json.loads(documents.json_schema())["$defs"]
    assert "| `algorithm.loss.clip_low` | number > 0, <= 1,000 | `0.0003` |" in table
    assert "| `reward.components.overlong.buffer` | integer >= 1, <= 4,194,304 | `4` |" in table
    assert "| `reward.components.reported.name` | string |" in table
    losses = schema["Algorithm"]["properties"]["loss"]["oneOf"]
    assert [loss["properties"]["name"].get("const") for loss in losses] == [*LOSSES.own_names(), None]
    assert all(loss["additionalProperties"] is False for loss in losses[:-1])
    assert set(schema["Reward"]["properties"]["components"]["properties"]) >= {"accuracy", "overlong"}


def _sections(section: type[Section]) -> list[type[Section]]:
    return [section, *(inner for kind in _nested(section).values() for inner in _sections(kind))]


def _nested(section: type[Section]) -> dict[str, type[Section]]:
    return {name: field.annotation for name, field in section.model_fields.items() if _is_section(field.annotation)}


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _holders(paths: list[Path], owners: set[str]) -> set[str]:
    """The records of the package that have one of the owners as a field."""
    return {name for path in paths for name, kind in _fields(path) if kind in owners}


@cache
def _fields(path: Path) -> list[tuple[str, str]]:
    """Each field with a plain annotation: the class that it is of, and its type."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    fields = [
        (each.name, field.annotation) for each in classes for field in each.body if isinstance(field, ast.AnnAssign)
    ]
    return [(name, annotation.id) for name, annotation in fields if isinstance(annotation, ast.Name)]


@cache
def _reads(path: Path) -> tuple[set[str], set[str]]:
    """The names a file mentions, and the attributes it reads."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names, {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@cache
def _read_by_methods(path: Path) -> list[tuple[str, set[str]]]:
    """Each class with the attributes that its methods read; validators, which are decorated, use nothing."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    methods = [(kind.name, m) for kind in classes for m in kind.body if isinstance(m, ast.FunctionDef)]
    return [
        (name, {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)})
        for name, method in methods
        if not method.decorator_list
    ]


@pytest.mark.parametrize("section", _sections(Params)[1:], ids=lambda kind: kind.__name__)
def test_every_key_of_a_section_is_read_by_code_that_is_given_that_section(section: type[Section]) -> None:
    package = [*(ROOT / "src/dagrpo").rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py")]
    files = [_reads(path) for path in (*package, *(ROOT / "workflow/scripts").glob("*.py"))]
    own = {kind.__name__ for kind in section.__mro__ if issubclass(kind, Section) and kind is not Section}
    owners = {*own, *(s.__name__ for s in _sections(Params) if section in _sections(s) and s is not Params)}
    owners |= _holders(package, owners) | {kind.__name__ for kind in section.__subclasses__()}
    read = {attribute for names, attributes in files if owners & names for attribute in attributes}
    read |= {each for path in package for name, found in _read_by_methods(path) if name in own for each in found}
    leaves = {key for key, field in section.model_fields.items() if not _is_section(field.annotation)}
    assert leaves - read == set()


PLUGGED: list[tuple[Plugins[Any], str]] = [
    (marker.plugins, name)
    for section in _sections(Params)
    for field in section.model_fields.values()
    for marker in field.metadata
    if isinstance(marker, Chosen | Several)
    for name in marker.plugins.own_names()
]


def _reads_outside_its_config(module: str) -> set[str]:
    """The attributes that a plug-in's module reads anywhere but in its Config and in what checks it."""
    source = Path(str(importlib.import_module(module).__file__)).read_text()
    work = [
        node
        for node in ast.parse(source).body
        if not _is_config(node) and not (isinstance(node, ast.FunctionDef) and node.name == "check")
    ]
    return {node.attr for statement in work for node in ast.walk(statement) if isinstance(node, ast.Attribute)}


def _beside(module: str) -> list[str]:
    """Return the modules of a plug-in that is a package."""
    path = Path(str(importlib.import_module(module).__file__))
    return [f"{module}.{each.stem}" for each in path.parent.glob("[a-z]*.py")] if path.stem == "__init__" else []


def _is_config(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == "Config"


@pytest.mark.parametrize(
    ("plugins", "name"), PLUGGED, ids=lambda value: value if isinstance(value, str) else value.what
)
def test_every_key_of_a_plug_in_is_read_by_its_own_code(plugins: Plugins[Any], name: str) -> None:
    common = (
        Choice.model_fields.keys()
        | Weighted.model_fields.keys()
        | Weighed.model_fields.keys()
        | Limits.model_fields.keys()
        | EngineConfig.model_fields.keys()
        | OverBatch.model_fields.keys()
    )
    config = config_of(plugins, name)
    # A Config that adds to another plug-in's is read by the code of both.
    modules = {plugins.module_of(name)} | {kind.__module__ for kind in config.__mro__ if kind.__name__ == "Config"}
    read = set().union(*map(_reads_outside_its_config, [*modules, *_beside(plugins.module_of(name))]))
    assert config.model_fields.keys() - common - read == set()


def test_every_limit_of_an_attempt_is_read_by_what_makes_attempts_or_learns_from_them() -> None:
    package = ROOT / "src/dagrpo"
    files = [*(package / "rollout").rglob("*.py"), *(package / "trainer").rglob("*.py")]
    read = set().union(*(_reads(path)[1] for path in files))
    assert Limits.model_fields.keys() - read == set()
