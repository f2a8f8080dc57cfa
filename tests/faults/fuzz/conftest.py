"""Fuzzing takes minutes."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder: `make nightly` runs them, and `make faults` for hours."""
    item.add_marker("nightly")
