"""python_functions: plain Python functions as tools.

Each is described by its signature and docstring. They run in this process with all its rights; code_interpreter runs code that the
policy writes.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from pydantic import Field, validate_call

from dagrpo.core.errors import UserError
from dagrpo.core.section import Texts
from dagrpo.core.user_code import NamedCode
from dagrpo.tools import CallContext, StatelessTool, Tool, ToolFunction, ToolSection
from dagrpo.tools.connections.own_code import answer_of, described, imported

KEY = "rollout.tools.python_functions.functions"


class Config(ToolSection):
    """Plain Python functions."""

    functions: Texts = Field([], description="Import paths, such as my_lab.tools:add.")
    repeatable: bool = Field(
        False, description="true: equal arguments give equal results; false: results are recorded."
    )


class PythonFunctions(StatelessTool):
    """Tool that awaits asynchronous functions, and runs others in threads."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = {name: validate_call(function) for name, function in functions.items()}

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the function's result: text unchanged, anything else as JSON. Raises ToolFailure if the function raises."""
        return await answer_of(self._functions[function], arguments)


def functions_at(paths: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return functions by their names, from import paths.

    Raises UserError if one is missing or no function, or two have the same name.
    """
    functions = [_function_at(path) for path in paths]
    by_name = {function.__name__: function for function in functions}
    if not functions or len(by_name) < len(functions):
        raise UserError(
            f"{KEY} is {list(paths)}: give import paths such as my_lab.tools:add, of functions of different names."
        )
    return by_name


def _function_at(path: str) -> Callable[..., Any]:
    function = imported(path, KEY)
    if not inspect.isfunction(function):
        raise UserError(f"{KEY}: {path} is not a function but a {type(function).__name__}: name a function.")
    return function


def _functions(config: Config) -> list[ToolFunction]:
    return [described(function) for function in functions_at(config.functions).values()]


def _check(config: Config) -> None:
    _functions(config)


TOOL = Tool(
    config=Config,
    functions=_functions,
    check=_check,
    code=lambda config: NamedCode.at(config.functions),
    open=lambda config, place: nullcontext(PythonFunctions(functions_at(config.functions))),
    repeatable=lambda config: config.repeatable,
)
