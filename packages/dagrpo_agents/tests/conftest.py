"""The data and hypothesis' profiles of tests/."""

from tests.conftest import data_folder

__all__ = ["data_folder"]
