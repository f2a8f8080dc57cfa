"""Inputs of a run, as in tests/trainer."""

from tests.trainer.conftest import inputs

__all__ = ["inputs"]
