"""What all tools have in common: found by name, described as chat templates take it, and cheap to check parameters with."""

import subprocess
import sys
from pathlib import Path

import pytest

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
