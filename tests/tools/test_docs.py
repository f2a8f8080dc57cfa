"""docs/tools.md: its tables are the plug-ins', and its example is a tool as it stands."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools.calls import called

from dagrpo import tools
from dagrpo.core.plugin_sections import Several
from dagrpo.core.section import Section
from dagrpo.tools import TOOLS, ToolFailure
from dagrpo.tools.simulated_users import INTERACTIONS

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/tools.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.fixture
def _with_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's file where tools are looked for, as if it stood in the package."""
    (tmp_path / "unit.py").write_text(EXAMPLE)
    monkeypatch.setattr(tools, "__path__", [*tools.__path__, str(tmp_path)])
    yield
    sys.modules.pop("dagrpo.tools.unit", None)


@pytest.mark.usefixtures("_with_the_example")
def test_the_example_is_a_whole_tool() -> None:
    checked: dict[str, Section] = Several(TOOLS).check({"unit": {"digits": 1}})
    config: Any = checked["unit"]
    assert called("unit", config, length="3 mile") == "4828.0 m"
    assert called("unit", length="2 foot") == "0.61 m"
    with pytest.raises(ToolFailure, match="Write a whole number and one of m, km, mile, foot"):
        called("unit", length="far")


def _rows(heading: str) -> dict[str, list[str]]:
    section = DOCUMENT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    return {re.findall(r"`(\w+)`", row[0])[0]: row for row in rows}


def test_the_tables_have_every_tool_and_user_and_say_which_are_oracles() -> None:
    listed_tools, listed_users = _rows("The tools there are"), _rows("Users")
    assert set(listed_tools) >= set(TOOLS.own_names())
    assert set(listed_users) == set(INTERACTIONS.own_names())
    for name in TOOLS.own_names():
        assert ("(oracle)" in listed_tools[name][0]) == TOOLS.get(name).oracle
    for name, row in listed_users.items():
        assert ("(oracle)" in row[0]) == INTERACTIONS.get(name).oracle


@pytest.mark.parametrize("name", ["answer_check", "calculator", "mcp", "python_functions", "search"])
def test_every_parameter_is_explained(name: str) -> None:
    (explained,) = re.findall(rf"^- \*\*{name}\*\*(.*?)(?=^- \*\*|^#)", DOCUMENT, re.DOTALL | re.MULTILINE)
    keys = TOOLS.get(name).config.model_fields
    assert {key for key in keys if f"`{key}" not in explained} == set()
