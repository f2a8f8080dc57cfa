"""A tiny model with a tokenizer, and property tests that no busy machine can fail."""

from hypothesis import settings
from tests.checkpoints.conftest import pristine

__all__ = ["pristine"]

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
