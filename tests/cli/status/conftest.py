"""The made-up project of tests/freshness."""

from tests.freshness.conftest import made_up

__all__ = ["made_up"]
