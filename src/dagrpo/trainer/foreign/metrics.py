"""Metrics of another project's trainer under our names."""

from collections.abc import Mapping
from typing import Any


def named(line: Mapping[str, Any], same: Mapping[str, str], trainer: str) -> tuple[int, dict[str, float]]:
    """Return the step and the metrics of a line `{"step": 1, "data": {...}}`: numbers alone, below `trainer`/ what `same` does not name."""
    numbers = {name: value for name, value in line["data"].items() if isinstance(value, int | float)}
    return int(line["step"]), {same.get(name, f"{trainer}/{name}"): float(value) for name, value in numbers.items()}
