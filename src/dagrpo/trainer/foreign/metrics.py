"""Metrics of another project's trainer under our names."""

import math
from collections.abc import Mapping
from typing import Any


def named(line: Mapping[str, Any], same: Mapping[str, str], trainer: str) -> tuple[int, dict[str, float]]:
    """Return the step and the metrics of a line `{"step": 1, "data": {...}}`: numbers alone, below `trainer`/ what `same` does not name.

    A null is NaN, which JSON does not have.
    """
    data = {name: math.nan if value is None else value for name, value in line["data"].items()}
    numbers = {name: value for name, value in data.items() if isinstance(value, int | float)}
    return int(line["step"]), {same.get(name, f"{trainer}/{name}"): float(value) for name, value in numbers.items()}
