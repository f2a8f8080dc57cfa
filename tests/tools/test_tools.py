"""What all tools have in common: found by name, described as chat templates take it, and cheap to check parameters with."""

import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from dagrpo.tools import TOOLS, functions_of

HEAVY = ("torch", "transformers", "aiohttp", "mlflow", "numpy", "pyarrow", "renderers", "mcp", "bm25s", "math_verify")
ROOT = Path(__file__).parents[2]


def test_our_own_tools_are_those_of_the_folder() -> None:
    assert {"answer_check", "calculator", "mcp", "python_functions", "search"} <= set(TOOLS.own_names())
    assert [name for name in TOOLS.own_names() if TOOLS.get(name).oracle] == ["answer_check"]


@pytest.mark.parametrize("name", ["answer_check", "calculator", "search"])
def test_a_description_is_an_openai_function_schema(name: str) -> None:
    (function,) = functions_of([name], {})[name]
    assert function.schema["type"] == "function"
    assert set(function.schema["function"]) == {"name", "description", "parameters"}
    assert function.name == name
    jsonschema.Draft202012Validator.check_schema(function.schema["function"]["parameters"])


@pytest.mark.parametrize("package", ["tools", "tools.simulated_users"])
def test_checking_parameters_of_tools_imports_nothing_heavy(package: str) -> None:
    modules = sorted(path.stem for path in (ROOT / "src/dagrpo" / package.replace(".", "/")).glob("[a-z]*.py"))
    assert modules
    lines = "; ".join(f"import dagrpo.{package}.{module}" for module in modules)
    program = f"import sys; {lines}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
