"""What all tools have in common: found by name, described as chat templates take it, and as docs/tools.md says."""

import re
import subprocess
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

HEAVY = ("torch", "transformers", "aiohttp", "mlflow", "numpy", "pyarrow", "renderers", "mcp", "bm25s", "math_verify")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["tools", "tools.simulated_users"])
def test_checking_parameters_of_tools_imports_nothing_heavy(package: str) -> None:
    modules = sorted(path.stem for path in (ROOT / "src/dagrpo" / package.replace(".", "/")).glob("[a-z]*.py"))
    assert modules
    lines = "; ".join(f"import dagrpo.{package}.{module}" for module in modules)
    program = f"import sys; {lines}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
