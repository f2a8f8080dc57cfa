"""Tools and users of somebody else, installed or named by an import path."""

from pathlib import Path
from typing import Any

import pytest
from tests.rollout.problems import task_row
from tests.tools.calls import called

from dagrpo.core.plugin_sections import Several
from dagrpo.core.section import Section
from dagrpo.tools import TOOLS, functions_of
from dagrpo.tools.simulated_users import INTERACTIONS


def test_a_tool_of_an_installed_package_is_found_and_configured(installed_lab: Path) -> None:
    installed_lab.write_text(
        "[dagrpo.tools]\ndice = example_lab.tools:dice\n[dagrpo.interactions]\ninsistent = example_lab.tools:insistent\n"
    )
    checked: dict[str, Section] = Several(TOOLS).check({"dice": {"faces": 20}})
    (throw,) = functions_of(["dice"], checked)["dice"]
    assert throw.description == "Throw a die of 20 faces."
    config: Any = checked["dice"]
    assert called("dice", config, function="throw") == called("dice", config, function="throw")
    assert INTERACTIONS.get("insistent").reply(task_row(), ["a"]) == "Throw again."


@pytest.mark.usefixtures("_lab")
def test_a_tool_is_found_by_its_import_path() -> None:
    (throw,) = functions_of(["example_lab.tools:dice"], {})["example_lab.tools:dice"]
    assert throw.description == "Throw a die of 6 faces."
