"""Trainer backends: implementations of the stage train, by files.

Each module offers one as BACKEND.
"""

from dagrpo.trainer.config.backends import BACKENDS, Backend, Planned

__all__ = ["BACKENDS", "Backend", "Planned"]
