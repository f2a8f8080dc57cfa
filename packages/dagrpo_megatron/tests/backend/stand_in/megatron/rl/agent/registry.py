from importlib import import_module
from typing import Any

AGENT_REGISTRY: dict[str, str] = {}


def get_agent_class(name: str) -> Any:
    module, _, attribute = AGENT_REGISTRY[name].partition(":")
    return getattr(import_module(module), attribute)
