"""The names on the page of the public API are defined where the page looks for them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = re.findall(r"^```\{public\} (\S+)", (ROOT / "docs/site/api.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_defined_in_the_file_of_its_module(name: str) -> None:
    module, _, last = name.rpartition(".")
    top = module.partition(".")[0]
    path = ROOT.joinpath("src" if top == "dagrpo" else f"packages/{top}/src", *module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert re.search(rf"^(class|def|async def) {last}\b|^{last}\b.*=", file.read_text(), re.MULTILINE)
