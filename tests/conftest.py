"""Real data where it is at hand, one server for tests of many files, and property tests that no busy machine can fail."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

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


# Places whose tests start no engine, trainer or stage. `make check` does not even import the others.
QUICK = {"algorithms", "chat", "config", "core", "docs", "plugins", "rollout", "screen", "tools", "utils"}


def _is_quick(path: Path) -> bool:
    tests = Path(__file__).parent
    places = path.relative_to(tests).parts if path.is_relative_to(tests) else ("packages",)
    return not places or places[0] in QUICK or places[0].endswith(".py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is not quick where the expression of marks leaves out slow tests."""
    return True if "not slow" in config.option.markexpr and not _is_quick(collection_path) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest, and the quick tests last, so that no worker ends long before the other.

    One worker makes the run that others share. Meanwhile the other takes the tests of servers and the slow
    ones; those that wait for the shared run come when it is there.
    """
    sharing = {item.path for item in items if SHARED_RUN & set(getattr(item, "fixturenames", ()))}
    of_the_dag = {item.path for item in items if item.get_closest_marker("dag")} - sharing
    of_servers = {item.path for item in items if item.get_closest_marker("server")}

    def turn(item: pytest.Item) -> int:
        if item.path in sharing:
            return 0 if item.path.name == "test_dag.py" else 4
        if item.path in of_servers:
            return 1
        return 2 if item.path in of_the_dag else 5 if _is_quick(item.path) else 3

    items.sort(key=turn)


SHARED_RUN = {"run_by_snakemake", "undisturbed"}  # fixtures that wait for the whole run which all workers share
SERVES = re.compile(r"_on_a_server\.py|engine/sglang/test_(server|tensor_sync)\.py")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Have one worker take all files that ask shared servers: each server is started once."""
    return OneWorkerForServers(config, log)


class OneWorkerForServers(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Scheduler by files, of which those of servers count as one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "servers" if SERVES.search(file) else file
