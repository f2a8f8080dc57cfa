"""Stages of the DAG, one module each: declaration and work.

A stage declares the parameters that it reads and the resources that it needs. A new one is a module here.
"""

import importlib
import pkgutil
from functools import cache

from dagrpo.pipeline.declaration import Stage


@cache
def all_stages() -> dict[str, Stage]:
    """Return every module's STAGE, by name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    stages: list[Stage] = [module.STAGE for module in modules]
    return {stage.name: stage for stage in stages}
