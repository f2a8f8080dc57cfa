"""Published scorers under their names, for numbers beside a paper's.

They judge as published, faults included, and never enter a reward: the verifiers do.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from dagrpo_answers.verifiers import names

OF_GSM8K = ("gsm8k",)
OF_MATH = ("gsm8k", "math", "math_dapo", "geo3k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A published rule that judges a whole completion."""

    name: str
    source: str  # program and version that it is taken from, with its license
    right: Callable[
        [str, str], bool | None
    ]  # completion, ground truth -> whether right; None: the library math-verify decides
    verifiers: tuple[str, ...] = ()  # whose tasks it is for; (): of all tasks

    def suits(self, verifier: str) -> bool:
        """Return True for a task with this verifier: one that it is for, or one of another package."""
        return not self.verifiers or verifier in self.verifiers or verifier not in names()


def scorers() -> dict[str, Scorer]:
    """Return the scorers of this package by their names."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {scorer.name: scorer for module in modules for scorer in module.SCORERS}
