"""python_functions: plain Python functions as tools, each described by its signature and docstring.

They run in this process with all its rights. Not here: code that the policy writes (code_interpreter).
"""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from pydantic import Field, validate_call

from dagrpo.rollout.described import described, functions_at
from dagrpo.rollout.threads import in_thread
from dagrpo.rollout.tools import (
    CallContext,
    InfrastructureFailure,
    StatelessTool,
    Tool,
    ToolFailure,
    ToolFunction,
    ToolSection,
)

KEY = "rollout.tools.python_functions.functions"


class Config(ToolSection):
    """Plain Python functions."""

    functions: list[str] = Field([], description="Import paths, such as my_lab.tools:add.")
    repeatable: bool = Field(False, description="The same arguments give the same result; false: results are recorded.")


class PythonFunctions(StatelessTool):
    """Awaits functions that are asynchronous, and runs the others in threads."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = {name: validate_call(function) for name, function in functions.items()}

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """What the function returns, a text as it is and anything else as JSON. ToolFailure: what it raised."""
        called = self._functions[function]
        try:
            if inspect.iscoroutinefunction(inspect.unwrap(called)):
                result = await called(**arguments)
            else:
                result = await in_thread(called, arguments)
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except (ToolFailure, InfrastructureFailure):
            raise
        except (Exception, SystemExit) as error:  # the border to other people's code: whatever it raises is its answer
            raise ToolFailure(f"{type(error).__name__}: {error}") from error


def _functions(config: Config) -> list[ToolFunction]:
    return [described(function) for function in functions_at(config.functions, KEY).values()]


TOOL = Tool(
    config=Config,
    functions=_functions,
    open=lambda config, place: nullcontext(PythonFunctions(functions_at(config.functions, KEY))),
    repeatable=lambda config: config.repeatable,
)
