"""Import, call and describe the user's own Python code.

It runs in this process with all its rights. The policy reads a function's name, its docstring in Google's style, and a JSON schema of its
signature. Types are those that pydantic can describe: int, float, str, bool, list, dict, Optional, Literal and combinations of them.
"""

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from dagrpo.core.errors import Terminated, UserError
from dagrpo.core.user_code import require_allowed
from dagrpo.tools import InfrastructureFailure, ToolFailure, ToolFunction, as_text


def imported(path: str, key: str) -> Any:
    """Return the object at an import path such as my_lab.tools:add. Raises UserError if it cannot be imported.

    key: the key of params.yaml that holds the path.
    """
    module, _, name = path.partition(":")
    require_allowed(module)
    try:
        return getattr(importlib.import_module(module), name)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # the border to other people's code: whatever it raises is its own
        raise UserError(
            f"{key}: `{path}` cannot be imported ({type(error).__name__}: {error}): give a path such as my_lab.tools:add, "
            "of a module that is installed or on PYTHONPATH."
        ) from error


async def result_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return a function's result: an asynchronous one is awaited, any other runs in a separate thread."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(**arguments)
    return await in_thread(function, arguments)


async def trusted_result_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return the result of a function that the policy does not call. Raises InfrastructureFailure if it raises."""
    try:
        return await result_of(function, arguments)
    except (InfrastructureFailure, Terminated):
        raise
    except (Exception, SystemExit) as error:  # the border to other people's code
        name = getattr(function, "__qualname__", type(function).__name__)  # an object that can be called has no name
        raise InfrastructureFailure(f"{name} raised {type(error).__name__}: {error}") from error


async def answer_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Return the result as text for the policy. Raises ToolFailure if the function raises, or its own InfrastructureFailure."""
    try:
        return as_text(await result_of(function, arguments))
    except (ToolFailure, InfrastructureFailure, Terminated):
        raise
    except (Exception, SystemExit) as error:  # the border to other people's code: whatever it raises is its answer
        raise ToolFailure(f"{type(error).__name__}: {error}") from error


# ---- threads ----


async def in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run a function in a separate daemon thread; return its result, or raise its error.

    A function that never ends delays neither other calls nor the end of the process: asyncio.to_thread has few threads, and the
    interpreter waits for them. If the caller is cancelled, the function runs on, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def work() -> None:
        result, raised = None, None
        try:
            result = function(**arguments)
        except BaseException as error:  # noqa: BLE001  the caller raises it
            raised = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, result, raised)

    threading.Thread(target=work, daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def described(function: Callable[..., Any]) -> ToolFunction:
    """Return the function's description. Raises UserError, with the function and what it lacks."""
    name = function.__name__
    summary, meanings = _docstring(function, name)
    hints = _hints(function, name)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED or parameter.name not in hints:
            raise UserError(f"{name} cannot be a tool: give its argument {parameter} a type, and no star or slash.")
        property = _schema(hints[parameter.name], f"{name}, argument {parameter.name}")
        if parameter.name in meanings:
            property["description"] = meanings[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = property
    schema = {"type": "object", "properties": properties, "required": required}
    return ToolFunction(name=name, description=summary, parameters=schema)


def _docstring(function: Callable[..., Any], name: str) -> tuple[str, dict[str, str]]:
    """Return the summary, and the docstring's description of each argument."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    summary, meanings, _ = parse_google_format_docstring(inspect.getdoc(function) or "")
    if not summary:
        raise UserError(f"{name} cannot be a tool: give it a docstring, from which the policy learns its purpose.")
    return summary, meanings or {}


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UserError(
            f"{name} cannot be a tool: its type hints cannot be read ({error}): import what they name."
        ) from None


def _schema(hint: Any, place: str) -> dict[str, Any]:
    try:
        schema = TypeAdapter(hint).json_schema()
    except PydanticUserError as error:
        raise UserError(
            f"{place}: the type {hint} has no JSON schema ({error.message.splitlines()[0]}): use int, "
            "float, str, bool, list, dict and Literal."
        ) from None
    if "$defs" in schema:
        raise UserError(f"{place}: the type {hint} is no plain one: use int, float, str, bool, list, dict and Literal.")
    return schema
