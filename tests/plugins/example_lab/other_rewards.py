"""The same component under a second path: its label in metrics is taken."""

from example_lab.rewards import shortness

__all__ = ["shortness"]
