"""The made-up project of tests/pipeline/changes."""

from tests.pipeline.changes.conftest import made_up

__all__ = ["made_up"]
