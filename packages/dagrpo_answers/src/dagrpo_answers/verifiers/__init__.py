"""Verifiers, one file each: how answers are extracted and compared."""

import importlib
import pkgutil
from functools import cache

from dagrpo_answers.errors import UserError
from dagrpo_answers.verifier import Verifier


@cache
def names() -> tuple[str, ...]:
    """Return the names of the verifiers of this package, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@cache
def get_verifier(name: str) -> Verifier:
    """Return a verifier of this package. Raises UserError for an unknown name."""
    if name not in names():
        raise UserError(f"`{name}` is not a verifier: write one of {', '.join(names())}.")
    verifier = importlib.import_module(f"{__name__}.{name}").VERIFIER
    assert isinstance(verifier, Verifier)
    return verifier
