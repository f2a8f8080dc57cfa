"""Stub of torchvision for a CPU build of torch.

PyPI's torchvision does not load beside that build. SGLang imports a few names of it for models that accept pictures. The stub lets
text models run, and with --image-processor-backend pil those that accept pictures, too. A real one, when installed, wins.
"""

import importlib
from types import ModuleType
from typing import Any

from dagrpo_sglang_cpu.finder import STUBBED

VERSION = "0.28.0"  # the release that belongs to torch 2.13
INTERPOLATION = {"NEAREST": 0, "NEAREST_EXACT": 0, "LANCZOS": 1, "BILINEAR": 2, "BICUBIC": 3, "BOX": 4, "HAMMING": 5}


class _Missing:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"torchvision's {type(self).__name__} is not available: install torchvision")


def fill(module: ModuleType) -> None:
    """Give a module every public name, as a class that refuses to be built."""
    if module.__name__ == "torchvision":
        vars(module)["__version__"] = VERSION

    def missing(name: str) -> type | ModuleType:
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{module.__name__}.{name}" in STUBBED:
            return importlib.import_module(f"{module.__name__}.{name}")
        return type(name, (_Missing,), dict(INTERPOLATION))

    module.__getattr__ = missing  # type: ignore[method-assign]
