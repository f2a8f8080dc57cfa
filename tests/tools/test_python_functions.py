"""Plain Python functions as tools: described by themselves, run beside the loop, and never the end of a run."""

import subprocess
import sys
from typing import Any

import pytest
from tests.tools.calls import called

from dagrpo.core.errors import UserError
from dagrpo.tools import InfrastructureFailure, ToolFailure
from dagrpo.tools.python_functions import TOOL, Config

HERE = "tests.tools.own_functions"


def _config(*names: str) -> Config:
    return Config(functions=[f"{HERE}:{name}" for name in names])


def _called(function: str, **arguments: Any) -> str:
    return called("python_functions", _config(*{"area", function}), function=function, **arguments)


def test_a_function_describes_itself() -> None:
    (area,) = TOOL.functions(_config("area"))
    assert area.name == "area"
    assert area.description == "Compute the area of a rectangle.\n\nGive both sides in the same unit."
    assert area.parameters == {
        "type": "object",
        "properties": {
            "width": {"type": "number", "description": "The first side, never negative."},
            "height": {"type": "number", "description": "The second side."},
            "unit": {"enum": ["cm", "m"], "type": "string", "description": "Of both."},
            "names": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}]},
        },
        "required": ["width"],
    }


def test_a_function_is_called_with_its_arguments_and_what_is_no_text_is_json() -> None:
    assert _called("area", width=3, height=2.5, unit="m") == "7.5 m^2"
    assert _called("area", width=3) == "3 cm^2"
    assert _called("later", number=4) == '{"doubled": 8}', "an asynchronous one is awaited"


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("area", {"width": -1}, r"^ValueError: a side is negative$"),
        ("leave", {}, r"^SystemExit: 3$"),
        ("alarmed", {}, "signal only works in main thread"),
    ],
)
def test_what_a_function_raises_is_its_answer_unless_it_says_that_the_policy_has_no_part_in_it(
    function: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ToolFailure, match=words):
        _called(function, **arguments)
    with pytest.raises(InfrastructureFailure, match="the database is gone"):
        _called("broken")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((), r"functions is \[\]: give import paths"),
        (("area", "area"), "of functions of different names"),
        (("nothing",), "own_functions:nothing` cannot be imported"),
        (("NUMBER",), "own_functions:NUMBER is not a function but a int"),
        (("silent",), "silent cannot be a tool: give it a docstring"),
        (("untyped",), "untyped cannot be a tool: give its argument x a type"),
        (("starred",), r"starred cannot be a tool: give its argument \*numbers: int a type, and no star"),
        (("odd",), r"odd, argument x: the type .*Callable.* has no JSON schema"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        TOOL.functions(_config(*names))


HANGING = """
import asyncio
from tests.tools.calls import context
from dagrpo.tools.python_functions import PythonFunctions

def hang() -> str:
    import time
    time.sleep(1000)

def quick() -> str:
    return "quick"

async def main():
    tool = PythonFunctions({"hang": hang, "quick": quick})
    hanging = [asyncio.create_task(tool.call("hang", {}, context())) for _ in range(100)]
    await asyncio.wait(hanging, timeout=0.1)
    print(await tool.call("quick", {}, context()), flush=True)

asyncio.run(main())
"""


def test_functions_that_never_end_hold_up_neither_others_nor_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "quick\n"
