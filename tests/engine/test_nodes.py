"""Servers on nodes of their own: what their nodes and the trainer tell each other."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from dagrpo.core.errors import TransientError, UserError
from dagrpo.engine import ENGINES, nodes
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.errors import ServerAway, ServerError, ServerUnreachable
from dagrpo.engine.http import Endpoint, HttpServer
from dagrpo.engine.sglang.server import free_port
from dagrpo.utils.files import read_json, write_json


@dataclass
class FakeServer:
    """A server of a fake engine: what it was started with, and why it is dead."""

    endpoint: Endpoint
    begun: list["FakeServer"]
    death: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    tries: int = 0

    def begin(self) -> None:
        self.begun.append(self)

    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        if self.options.get("model") == "broken":
            raise ServerError("The server died while it was starting.")
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def answers_requests(self) -> bool:
        part = self.options.get("part")
        return part is None or part.number == 0

    def diagnose(self) -> str | None:
        return self.death

    def begun_again(self) -> Self:
        self.tries += 1
        if self.options.get("model") == "broken again":
            raise ServerError("Port 30000 is in use.")
        self.begin()
        return self


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[FakeServer]:
    """The servers that nodes have begun."""
    servers: list[FakeServer] = []

    def start(config: EngineConfig, log: Path, gpus: str | None, host: str, **options: Any) -> FakeServer:
        return FakeServer(Endpoint(address=f"http://{host}/{log.name}", api_key=log.stem), servers, options=options)

    monkeypatch.setattr(nodes, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(nodes, "SECONDS_TO_SEE", 0.05)
    monkeypatch.setattr(ENGINES, "get", lambda name: SimpleNamespace(config=EngineConfig, start=start))
    return servers


def _serve(folder: Path, number: int) -> None:
    threading.Thread(target=nodes.serve, args=(folder, number, f"127.0.0.{number + 1}"), daemon=True).start()


def _config(**more: int) -> EngineConfig:
    return EngineConfig.model_validate({"name": "fake", **more})


def test_the_trainer_gets_the_servers_of_all_nodes_in_their_order(begun: list[FakeServer], tmp_path: Path) -> None:
    for number in (1, 0):
        _serve(tmp_path, number)
    found = nodes.on_nodes(tmp_path, _config(nodes=2, replicas=2), tmp_path / "train.server.log", {"model": "/m"})
    names = ["train.server.log", "train.2.server.log", "train.3.server.log", "train.4.server.log"]
    assert [each.address for each in found] == [f"http://127.0.0.{at // 2 + 1}/{name}" for at, name in enumerate(names)]
    assert [each.api_key for each in found] == [Path(name).stem for name in names]
    assert {each.options["model"] for each in begun} == {"/m"}


def test_a_node_that_cannot_start_its_servers_says_why(begun: list[FakeServer], tmp_path: Path) -> None:
    def serve() -> None:
        with pytest.raises(ServerError):
            nodes.serve(tmp_path, 0, "10.0.0.1")

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(ServerError, match=r"The server died while it was starting\."):
        nodes.on_nodes(tmp_path, _config(nodes=1), tmp_path / "train.server.log", {"model": "broken"})
    thread.join()


def test_a_node_that_does_not_come_has_other_software_or_sees_no_folder_is_an_error(
    begun: list[FakeServer], tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        nodes._answer_of(tmp_path, 0, time.monotonic())
    write_json(tmp_path / "0.json", {"software": "dagrpo of yesterday", "servers": []})
    with pytest.raises(UserError, match="node 0 of those that serve has dagrpo of yesterday; the trainer has dagrpo "):
        nodes._answer_of(tmp_path, 0, time.monotonic())
    with pytest.raises(UserError):
        nodes.serve(tmp_path / "missing", 0, "127.0.0.1")


def test_a_node_ends_with_the_folder_of_its_training(begun: list[FakeServer], tmp_path: Path) -> None:
    for is_described in (False, True):
        folder = tmp_path / "launch"
        folder.mkdir()
        thread = threading.Thread(target=nodes.serve, args=(folder, 0, "10.0.0.1"), daemon=True)
        thread.start()
        if is_described:
            nodes.on_nodes(folder, _config(nodes=1), tmp_path / "train.server.log", {"model": "/m"})
        shutil.rmtree(folder)
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("model", ["/m", "broken again"])
def test_a_dead_server_is_begun_again_a_few_times_and_leaves_the_others_alone(
    model: str, begun: list[FakeServer], tmp_path: Path, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    _serve(tmp_path, 0)
    nodes.on_nodes(tmp_path, _config(nodes=1, replicas=2), tmp_path / "train.server.log", {"model": model})
    first, second = begun
    first.death = "The server died"
    wait_until(lambda: first.tries == nodes.MOST_RESTARTS)
    second.death = "The server died"
    wait_until(lambda: second.tries == nodes.MOST_RESTARTS)
    time.sleep(0.1)  # in which it would be tried once more
    assert (first.tries, second.tries) == (nodes.MOST_RESTARTS,) * 2
    assert len(begun) == 2 + (0 if model == "broken again" else 2 * nodes.MOST_RESTARTS)


def test_the_nodes_of_one_server_share_a_store_and_the_first_of_them_answers(
    begun: list[FakeServer], tmp_path: Path
) -> None:
    for number in range(4):
        _serve(tmp_path, number)
    config = _config(nodes=4, nodes_per_server=2, start_timeout=5)
    found = nodes.on_nodes(tmp_path, config, tmp_path / "train.server.log", {"model": "/m"})
    assert [each.address for each in found] == [
        "http://127.0.0.1/train.server.log",
        "http://127.0.0.3/train.3.server.log",
    ]
    parts = {Path(each.endpoint.address).name: each.options["part"] for each in begun}
    first, second, third, fourth = (parts[name] for name in sorted(parts, key=lambda name: (len(name), name)))
    assert [(each.number, each.of) for each in (first, second, third, fourth)] == [(0, 2), (1, 2)] * 2
    assert first.store == second.store
    assert third.store == fourth.store != first.store


def test_a_part_of_a_server_that_dies_ends_its_node_with_the_reason(begun: list[FakeServer], tmp_path: Path) -> None:
    ends: list[ServerAway] = []

    def serve(number: int) -> None:
        with pytest.raises(ServerAway) as raised:
            nodes.serve(tmp_path, number, "127.0.0.1")
        ends.append(raised.value)

    _serve(tmp_path, 0)
    thread = threading.Thread(target=serve, args=(1,))
    thread.start()
    config = _config(nodes=2, nodes_per_server=2, start_timeout=5)
    nodes.on_nodes(tmp_path, config, tmp_path / "train.server.log", {"model": "/m"})
    (own,) = (each for each in begun if each.options["part"].number == 1)
    own.death = "The server died"
    thread.join(60)
    assert [str(end) for end in ends] == ["The server died"]
    assert read_json(tmp_path / "1.json") == "The server died"
    assert len(begun) == 2, "none was begun again"


@pytest.mark.parametrize("comes_back", [True, False])
def test_the_end_of_a_server_of_this_training_starts_its_stage_again(comes_back: bool) -> None:
    address = f"http://127.0.0.1:{free_port(None)}"
    server = HttpServer(Endpoint(address=address, comes_back=comes_back), timeout=5)
    with BackgroundLoop() as loop, pytest.raises(ServerUnreachable) as raised:
        try:
            loop.run(server.post("/generate", {}))
        finally:
            loop.run(server.close())
    assert isinstance(raised.value, TransientError) == comes_back
