"""What is generated from the schema is what the schema says, and no key is dead."""

import ast
from pathlib import Path
from typing import Any, TypeGuard

import pytest
import yaml

from dagrpo.params import documents
from dagrpo.params.base import Section
from dagrpo.params.overlay import difference, preset_text, read_preset
from dagrpo.params.schema import Params, parse, read_params

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "presets").glob("*.yaml"))


def test_the_shipped_params_yaml_is_what_the_schema_writes() -> None:
    assert (ROOT / "params.yaml").read_text() == documents.params_yaml(Params())


def test_the_json_schema_and_the_table_are_in_sync() -> None:
    assert (ROOT / documents.SCHEMA_PATH).read_text() == documents.json_schema()
    assert (ROOT / documents.TABLE_PATH).read_text() == documents.table()


def test_params_yaml_reads_back_as_the_same_parameters(tmp_path: Path) -> None:
    params = parse({"training": {"learning_rate": 3e-7}, "data": {"mirror": "on"}, "model": {"name": "1e5"}})
    path = tmp_path / "params.yaml"
    path.write_text(documents.params_yaml(params))
    assert read_params(path) == params


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_is_valid_and_names_itself(preset: Path) -> None:
    assert read_preset(preset).experiment.name == preset.stem
    assert yaml.safe_load(preset_text(preset)) == read_preset(preset).model_dump()


def test_the_difference_shows_values_and_leaves_comments_out() -> None:
    old, new = documents.params_yaml(Params()), documents.params_yaml(parse({"training": {"steps": 3}}))
    assert difference(old, new) == ["-  steps: 120", "+  steps: 3"]


def _sections(section: type[Section]) -> list[type[Section]]:
    kinds = [field.annotation for field in section.model_fields.values()]
    nested = [kind for kind in kinds if _is_section(kind)]
    return [section, *(inner for kind in nested for inner in _sections(kind))]


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _holders(paths: list[Path], owners: set[str]) -> set[str]:
    """The records of the package that have one of the owners as a field."""
    classes = [
        node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    fields = [
        (node.name, field.annotation) for node in classes for field in node.body if isinstance(field, ast.AnnAssign)
    ]
    return {name for name, annotation in fields if isinstance(annotation, ast.Name) and annotation.id in owners}


def _reads(path: Path) -> tuple[set[str], set[str]]:
    """The names a file mentions, and the attributes it reads."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names, {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("section", _sections(Params)[1:], ids=lambda kind: kind.__name__)
def test_every_key_of_a_section_is_read_by_code_that_is_given_that_section(section: type[Section]) -> None:
    package = [p for p in (ROOT / "src/dagrpo").rglob("*.py") if "params" not in p.parts]
    files = [_reads(path) for path in (*package, *(ROOT / "workflow/scripts").glob("*.py"))]
    owners = {section.__name__, *(s.__name__ for s in _sections(Params) if section in _sections(s) and s is not Params)}
    owners |= _holders(package, owners)
    read = {attribute for names, attributes in files if owners & names for attribute in attributes}
    workflow = (
        "".join(p.read_text() for p in (ROOT / "workflow/rules").glob("*.smk")) + (ROOT / "Snakefile").read_text()
    )
    leaves = [key for key, field in section.model_fields.items() if not _is_section(field.annotation)]
    dead = [key for key in leaves if key not in read and f"{section.__name__.lower()}.{key}" not in workflow]
    assert dead == []
