"""Real data where it is at hand, one server for tests of many files, and property tests that no busy machine can fail."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from dagrpo.engine.sglang.server import SGLangServer

# No deadline: a busy machine is no fault. `make nightly` chooses the other profile.
settings.register_profile("everyday", deadline=None, max_examples=25)
settings.register_profile("nightly", deadline=None, max_examples=200)
settings.load_profile("everyday")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Local copies of the public data sets, laid out as data.mirror expects."""
    default = Path(__file__).resolve().parents[1] / "../shared/data"
    folder = Path(os.environ.get("DAGRPO_DATA", default)).resolve()
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set DAGRPO_DATA to a folder with copies")
    return folder


@pytest.fixture(scope="session")
def fresh_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model of the default shape, in float32."""
    import torch

    from dagrpo.models.config import Fresh
    from dagrpo.models.fresh import make_fresh

    folder = tmp_path_factory.mktemp("fresh") / "model"
    make_fresh(folder, Fresh(), torch.float32)
    return folder


@pytest.fixture(scope="session")
def fresh_server(fresh_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SGLangServer"]:
    """A server of that model, whose weights each test that asks it has to load first."""
    from dagrpo.engine import sglang
    from dagrpo.engine.sglang.server import SGLangServer

    params = sglang.Config(start_timeout=240, request_timeout=120)
    with SGLangServer(fresh_model, params, tmp_path_factory.mktemp("logs") / "server.log") as server:
        yield server


# Places whose tests compute with models, start processes or read data: `make check` leaves them out.
SLOW = (
    *(
        "checkpoints",
        "data",
        "engine",
        "evaluation",
        "gpu",
        "made_up_gpu",
        "models",
        "report",
        "rewards",
        "tracking",
        "trainer",
    ),
    *("cli/replay", "cli/test_use.py", "cli/profiling", "cli/warm", "pipeline/plan", "pipeline/snakemake"),
    *("pipeline/test_supervisor.py", "test_command_line.py", "test_damaged_files.py"),
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of slow places."""
    place = item.path.relative_to(Path(__file__).parent).as_posix()
    if any(place == slow or place.startswith(f"{slow}/") for slow in SLOW):
        item.add_marker("slow")


SHARED_RUN = {"run_by_snakemake", "undisturbed"}  # fixtures that wait for the whole run which all workers share


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest, so that no worker ends minutes before the other: the DAG, then servers, then the rest.

    One worker makes the run that others share; meanwhile the other takes the files of tests that do not wait for it.
    """
    of_the_dag = [item for item in items if item.get_closest_marker("dag")]
    sharing = [item.path for item in of_the_dag if SHARED_RUN & _fixtures_of(item)]
    makes_it = next((path for path in sharing if path.name == "test_dag.py"), None)
    of_servers = {item.path for item in items if item.get_closest_marker("server")}
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> int:
        if item.get_closest_marker("dag") is not None:
            return 0 if item.path == makes_it else 2 if item.path in sharing else 1
        return 3 if item.path in of_servers else 4 if item.path in slow else 5

    items.sort(key=turn)


def _fixtures_of(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))
