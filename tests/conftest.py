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


SHARED_RUN = {"run_by_snakemake", "undisturbed"}  # fixtures that wait for the whole run which all workers share


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The real DAG first: it takes longest, and what runs beside it should not end minutes before it.

    One worker makes the run that others share; meanwhile the other takes the files of tests that do not wait for it.
    """
    of_the_dag = [item for item in items if item.get_closest_marker("dag")]
    sharing = [item.path for item in of_the_dag if SHARED_RUN & set(getattr(item, "fixturenames", ()))]
    makes_it = next((path for path in sharing if path.name == "test_dag.py"), None)

    def turn(item: pytest.Item) -> int:
        if item.get_closest_marker("dag") is None:
            return 3
        return 0 if item.path == makes_it else 2 if item.path in sharing else 1

    items.sort(key=turn)
