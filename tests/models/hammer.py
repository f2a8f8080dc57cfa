"""Tools that exist for tests of the tokenizer alone: nothing runs them."""

from contextlib import AbstractAsyncContextManager

from dagrpo.tools import OpenTool, Tool, ToolFunction, ToolPlace, ToolSection


def _function(name: str, **arguments: str) -> ToolFunction:
    properties = {argument: {"type": kind} for argument, kind in arguments.items()}
    return ToolFunction(name=name, description=name, parameters={"type": "object", "properties": properties})


def _hammers(config: ToolSection) -> list[ToolFunction]:
    return [_function("hit", times="integer", nail="string", other="string"), _function("drop", foot="string")]


def _saws(config: ToolSection) -> list[ToolFunction]:
    return [_function("saw", times="integer")]


def _open(config: ToolSection, place: ToolPlace) -> AbstractAsyncContextManager[OpenTool]:
    raise NotImplementedError


TOOL = Tool(config=ToolSection, functions=_hammers, open=_open)
SAW = Tool(config=ToolSection, functions=_saws, open=_open)
