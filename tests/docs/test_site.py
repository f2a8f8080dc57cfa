"""The page of the Python interface has what the package offers; the site, where `make docs` can make it, loads nothing."""

import re
import runpy
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

import dagrpo
from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.algorithms.corrections import CORRECTIONS
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.terms import TERMS
from dagrpo.core.plugins import Plugins
from dagrpo.data.task import TASKS
from dagrpo.engine import ENGINES
from dagrpo.rewards.components import COMPONENTS
from dagrpo.rewards.verifiers import VERIFIERS
from dagrpo.tools import TOOLS
from dagrpo.tools.simulated_users import INTERACTIONS

PAGE = (ROOT / "docs/site/api.md").read_text()
PUBLIC = re.findall(r"^```\{public\} (\S+)$", PAGE, re.MULTILINE)
PYTHON = ROOT / ".venv-docs/bin/python"
FROM_ELSEWHERE = re.compile(
    r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def test_the_page_has_every_function_that_the_package_offers() -> None:
    assert re.findall(r"^:as: dagrpo\.(\w+)$", PAGE, re.MULTILINE) == sorted(
        dagrpo.__all__, key=["load_scores", "load_metrics", "load_rollouts", "load_policy"].index
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_what_the_page_names_is_there_and_described(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert getattr(import_module(module), attribute).__doc__


@pytest.mark.parametrize(
    "plugins",
    [TASKS, VERIFIERS, COMPONENTS, LOSSES, ADVANTAGES, CORRECTIONS, TERMS, ENGINES, TOOLS, INTERACTIONS],
    ids=lambda plugins: plugins.what,
)
def test_the_table_of_plug_ins_says_what_each_is_called_and_how_it_is_found(plugins: Plugins[object]) -> None:
    kind = plugins._kind
    assert any(name.endswith(f".{kind.__name__}") for name in PUBLIC)
    row = next(line for line in PAGE.splitlines() if f"`{plugins.group}`" in line)
    assert f"`{kind.__name__}`" in row
    assert f"`{plugins._attribute}`" in row


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    """Without sphinx, to which a page in no toctree is an error."""
    site = runpy.run_path(str(ROOT / "docs/site/conf.py"))
    pages = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for pattern in site["include_patterns"]
        for path in ROOT.glob(pattern)
    }
    named = [page for part in site["NAVIGATION"].values() for page in part]
    assert sorted(named) == sorted(pages - {site["root_doc"]})


def test_the_lock_of_the_site_agrees_with_that_of_the_project() -> None:
    """A page shows what a reader of the sources would run."""
    pinned = _pins("cpu.lock")
    assert {name: version for name, version in _pins("docs.lock").items() if pinned.get(name, version) != version} == {}


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON.exists(), reason="`make docs` makes its environment")
def test_the_site_is_made_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command: list[str | Path] = [
        PYTHON,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-c",
        "docs/site",
        "-d",
        tmp_path / "trees",
        ".",
        tmp_path / "site",
    ]
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
