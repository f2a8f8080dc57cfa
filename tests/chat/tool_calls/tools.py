"""Two tools, and how each family writes a call with a body that need not be one."""

from collections.abc import Callable

TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string"}, "x": {"type": "integer"}},
                "required": ["q"],
            },
        },
    }
    for name in ("search", "calc")
)


def _json(name: str, key: str, arguments: str) -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def _hermes(name: str, arguments: str) -> str:
    return f"<tool_call>\n{_json(name, 'arguments', arguments)}\n</tool_call>"


def _llama3(name: str, arguments: str) -> str:
    return f"<|python_tag|>{_json(name, 'parameters', arguments)}"


def _mistral(name: str, arguments: str) -> str:
    return f"[TOOL_CALLS] [{_json(name, 'arguments', arguments)}]"


WRAPPED: dict[str, Callable[[str, str], str]] = {"hermes": _hermes, "llama3": _llama3, "mistral": _mistral}
