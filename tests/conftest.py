"""Real data where it is at hand, and property tests that no busy machine can fail."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Local copies of the public data sets, laid out as data.mirror expects."""
    default = Path(__file__).resolve().parents[1] / "../shared/data"
    folder = Path(os.environ.get("DAGRPO_DATA", default)).resolve()
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set DAGRPO_DATA to a folder with copies")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The real DAG first: it takes longest, and what runs beside it should not end minutes before it."""
    items.sort(key=lambda item: item.get_closest_marker("dag") is None)
