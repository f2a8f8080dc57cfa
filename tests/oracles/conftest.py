"""Oracles need environments of their own."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder: `make nightly` runs them, and `make oracle`."""
    item.add_marker("nightly")
