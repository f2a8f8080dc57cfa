"""The data and hypothesis' profiles of tests/; tests that are coroutines run on asyncio."""

import pytest
from tests.conftest import data_folder

__all__ = ["data_folder"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
