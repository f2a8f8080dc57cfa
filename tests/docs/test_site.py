"""What the page of the Python interface names is there; the site, where `make docs` can make it, loads nothing."""

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/site/api.md").read_text()
PUBLIC = re.findall(r"^```\{public\} (\S+)$", PAGE, re.MULTILINE)
PYTHON = ROOT / ".venv-docs/bin/python"
FROM_ELSEWHERE = re.compile(
    r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_the_page_names_is_described_and_defined_in_the_file_of_its_module(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    defined = import_module(module)
    assert getattr(defined, attribute).__doc__
    text = Path(str(defined.__file__)).read_text()
    assert re.search(rf"^(class|def|async def) {attribute}\b|^{attribute}\b.*=", text, re.MULTILINE)


def test_the_lock_of_the_site_agrees_with_that_of_the_project() -> None:
    """A page shows what a reader of the sources would run."""
    pinned = _pins("cpu.lock")
    assert {name: version for name, version in _pins("docs.lock").items() if pinned.get(name, version) != version} == {}


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON.exists(), reason="`make docs` makes its environment")
def test_the_site_is_made_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    places = ("-c", "docs/site", "-d", tmp_path / "trees", ".", tmp_path / "site")
    command = (PYTHON, "-m", "sphinx", "-q", "-W", *places)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    made = [path for path in (tmp_path / "site").rglob("*") if path.suffix in {".html", ".css"}]
    assert (tmp_path / "site/index.html").read_bytes() == (tmp_path / "site/README.html").read_bytes()
    assert [path.name for path in made if FROM_ELSEWHERE.search(path.read_text())] == []


def _pins(lock: str) -> dict[str, str]:
    found = re.findall(
        r"^([a-z0-9_.-]+)==([^\s;]+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE | re.IGNORECASE
    )
    return {name.lower().replace("_", "-"): version for name, version in found}
