"""Parameters of tests that run every day, beside repetitions that run at night."""

from collections.abc import Iterable
from typing import Any

import pytest


def everyday(chosen: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Return every value as a parameter of a test, all but the chosen ones marked nightly."""
    days = list(chosen)
    return [value if value in days else _at_night(value) for value in every]


def _at_night(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.nightly)
