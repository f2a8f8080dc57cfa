"""The real SGLang server as a process: its key, its log, where it listens, how it starts, and how it dies."""

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.engine.batches import batch
from tests.engine.pools import pool_over
from tests.listening import beyond_loopback, open_sockets

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import WITHOUT_WEIGHTS, AdapterForm
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.command import Serving
from dagrpo.engine.sglang.server import SGLangServer, free_port
from dagrpo.utils.files import read_json, write_json

LivingIn = Callable[[int], list[str]]
WaitUntil = Callable[[Callable[[], bool]], None]


@pytest.mark.server
def test_a_server_that_has_sampled_needs_its_key_which_stands_in_no_log_or_command_line_and_listens_on_loopback(
    server: SGLangServer, pool: ServerPool, tiny_model: Path
) -> None:
    pool.generate(batch(prompts=1), lockstep=True)
    stranger = replace(server.endpoint, api_key="wrong")
    with pool_over([stranger], tiny_model) as other, pytest.raises(ServerError, match=r"[Uu]nauthorized"):
        other.generate(batch(prompts=1), lockstep=False)
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    assert not any(server.api_key in part for process in family for part in process.cmdline())
    log = server.process.log.read_text()
    assert "'api_key': '***'" in log
    assert server.api_key not in log
    assert any(server.address.rpartition(":")[2] in one for one in open_sockets(server.process.pid))
    assert beyond_loopback(server.process.pid) == []


@contextmanager
def _stopped_scheduler(server: SGLangServer) -> Iterator[psutil.Process]:
    """Stop the scheduler of a server that goes on listening; continue it at the end."""
    scheduler = next(p for p in psutil.Process(server.process.pid).children() if "scheduler" in p.name())
    scheduler.suspend()
    try:
        yield scheduler
    finally:
        scheduler.resume()


@pytest.mark.nightly
@pytest.mark.server
def test_a_request_to_a_scheduler_that_stands_still_fails_for_lack_of_progress_and_the_next_is_answered(
    server: SGLangServer, pool: ServerPool, tiny_model: Path
) -> None:
    expected = pool.generate(batch(prompts=2), lockstep=True)
    with pool_over([server.endpoint], tiny_model, timeout=2) as impatient:
        impatient.load(HuggingFaceTensors(tiny_model), "first")
        with _stopped_scheduler(server), pytest.raises(ServerError, match="made no progress for 2 s"):
            impatient.generate(batch(prompts=2), lockstep=False)
    pool.load(HuggingFaceTensors(tiny_model), "first")
    assert pool.generate(batch(prompts=2), lockstep=True) == expected


@pytest.mark.nightly
@pytest.mark.server
def test_a_request_is_answered_by_a_scheduler_that_goes_on_within_the_limit(
    server: SGLangServer, pool: ServerPool, tiny_model: Path
) -> None:
    """It stops while it samples."""
    requests = [replace(each, max_new_tokens=200) for each in batch(prompts=8)]
    with pool_over([server.endpoint], tiny_model, timeout=20) as patient, ThreadPoolExecutor(1) as thread:
        patient.load(HuggingFaceTensors(tiny_model), "first")
        answered = thread.submit(patient.generate, requests, lockstep=False)
        with _stopped_scheduler(server):
            time.sleep(5)
            assert not answered.done()
        assert len(answered.result()) == len(requests)


@pytest.mark.nightly
@pytest.mark.server
def test_another_server_gives_the_same_bits_and_its_death_is_noticed_at_once(
    pool: ServerPool,
    tiny_model: Path,
    engine: sglang.Config,
    tmp_path: Path,
    living_in: LivingIn,
    wait_until: WaitUntil,
) -> None:
    expected = pool.generate(batch(), lockstep=True)
    with (
        SGLangServer(tiny_model, engine, tmp_path / "server.log") as server,
        pool_over([server.endpoint], tiny_model) as other,
    ):
        assert [replace(c, weight_version="first") for c in other.generate(batch(), lockstep=True)] == expected
        group = server.process.pid
        scheduler = next(p for p in psutil.Process(group).children() if "scheduler" in p.name())
        threading.Timer(0.5, scheduler.send_signal, [signal.SIGKILL]).start()
        with pytest.raises(ServerError, match=r"died \(its process sglang::scheduler ended\).*server\.log"):
            other.generate(batch(samples=32, max_new_tokens=200), lockstep=True)
    wait_until(lambda: not living_in(group))


@pytest.mark.nightly
@pytest.mark.server
def test_a_server_that_dies_while_starting_is_one_sentence_with_the_reason(
    tiny_model: Path, engine: sglang.Config, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    write_json(model / "config.json", read_json(model / "config.json") | {"architectures": ["Nonsense"]})
    log = tmp_path / "server.log"
    with pytest.raises(ServerError) as error, open_engine(model, engine, log, dtype="float32", deterministic=True):
        pass
    sentence = str(error.value)
    assert "died while it was starting" in sentence
    assert "Nonsense" in sentence
    assert str(log) in sentence
    assert "\n" not in sentence


def test_a_server_that_is_not_ready_in_time_is_killed(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, living_in: LivingIn, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr("dagrpo.engine.sglang.server.server_command", lambda *args, **kwargs: ["sleep", "100"])
    server = SGLangServer(tiny_model, sglang.Config(start_timeout=1), tmp_path / "server.log")
    with pytest.raises(ServerError, match=r"after 1 s; it was still importing its packages: .*start_timeout"), server:
        pass
    wait_until(lambda: not living_in(server.process.pid))


def test_a_taken_port_and_no_free_port_are_errors(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"Port {port} of 127.0.0.1 is in use"),
            SGLangServer(tiny_model, sglang.Config(), tmp_path / "server.log", port=port),
        ):
            pass

    class NoPorts(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(98, "Address already in use")

    monkeypatch.setattr(socket, "socket", NoPorts)
    with pytest.raises(ServerError, match=r"No port of 127\.0\.0\.1 is free"):
        free_port(None)


SCRIPTED_SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/health" or self.headers.get("Authorization") == "Bearer " + sys.argv[2]
        self.send_response(200 if known else 401); self.send_header("Content-Length", "0"); self.end_headers()
    do_POST = do_GET
HTTPServer.allow_reuse_address = False
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_another_server_took_in_between_is_left_to_it(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    """Such as that of another stage, which answers /health as ours would, but has another key."""
    taken = free_port(None)
    other = subprocess.Popen([sys.executable, "-c", SCRIPTED_SERVER, str(taken), "another key"])
    wait_until(lambda: listens(taken))
    server = SGLangServer(tiny_model, sglang.Config(start_timeout=60), tmp_path / "server.log")
    asked: list[int] = []

    def first_the_taken_one(wanted: int | None, host: str) -> int:
        asked.append(free_port(wanted) if asked else taken)
        return asked[-1]

    def command(serving: Serving, port: int, *rest: object, **about: object) -> list[str]:
        return [sys.executable, "-c", SCRIPTED_SERVER, str(port), server.api_key]

    monkeypatch.setattr("dagrpo.engine.sglang.server.free_port", first_the_taken_one)
    monkeypatch.setattr("dagrpo.engine.sglang.server.server_command", command)
    with server:
        assert len(asked) == 2
        assert server.address == f"http://127.0.0.1:{asked[1]}"
        assert server.diagnose() is None
    assert other.poll() is None
    other.kill()
    other.wait()


@pytest.mark.parametrize("form", [None, AdapterForm(rank=2, alpha=6, target_modules=("o_proj",))])
def test_a_server_begins_again_at_its_port_with_weights_only_where_they_stay_the_same(
    form: AdapterForm | None, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    launched: list[SGLangServer] = []

    def launch(server: SGLangServer, port: int) -> None:
        launched.append(server)

    monkeypatch.setattr(SGLangServer, "_launch", launch)
    server = SGLangServer(model, sglang.Config(), tmp_path / "log", version="step_1", adapter=form)
    server.begin()
    if form is None:
        (model / "model.safetensors").unlink()
    host, port = server.address.removeprefix("http://").split(":")
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, int(port)))
        listening.listen()
        client = socket.create_connection((host, int(port)))
        listening.accept()[0].close()  # the server's end first, which then is in TIME_WAIT
        client.close()
    again = server.begun_again()
    assert launched == [server, again]
    assert again.serving.version.startswith(WITHOUT_WEIGHTS)
    assert again.serving.has_weights == (form is not None)
    assert again.endpoint.address == server.endpoint.address


def test_every_server_has_an_api_key_of_its_own_that_cannot_be_taken_for_a_flag(tmp_path: Path) -> None:
    keys = {SGLangServer(tmp_path, sglang.Config(), tmp_path / "log").api_key for _ in range(200)}
    assert len(keys) == 200
    assert all(key.isalnum() and len(key) == 64 for key in keys)
