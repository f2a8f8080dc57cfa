"""A server that compiles kernels while it starts has the time for it, and one that does nothing has not."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from dagrpo.engine import sglang
from dagrpo.engine.errors import ServerError
from dagrpo.engine.sglang import server as server_module
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.engine.sglang.startup import StartLimit, phase_in

# ninja for some seconds, then answers; or never answers.
STAND_IN = """
import http.server, subprocess, sys
port, ninja, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    do_POST = do_GET
    def log_message(self, *a): pass
subprocess.run([ninja, "4" if folder != "-" else "1000"], cwd=folder if folder != "-" else None)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def _start(monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tmp_path: Path, program: str, folder: str) -> None:
    tool = tmp_path / program
    shutil.copy("/bin/sleep", tool)

    def command(serving: object, port: int, *_: object, **__: object) -> list[str]:
        return [sys.executable, "-c", STAND_IN, str(port), str(tool), folder]

    monkeypatch.setattr(server_module, "server_command", command)
    with SGLangServer(tiny_model, sglang.Config(start_timeout=2), tmp_path / "x.server.log"):
        pass


def test_the_limit_does_not_run_while_a_server_compiles_and_the_console_names_the_module(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dagrpo.utils.console.SECONDS_BETWEEN_LINES", 1)
    staging = tmp_path / "activation/build-0a1b/.staging-2c3d"
    staging.mkdir(parents=True)
    _start(monkeypatch, tiny_model, tmp_path, "ninja", str(staging))
    out = capfd.readouterr()
    assert "compiling kernels activation for" in out.out + out.err


@pytest.mark.nightly
def test_the_limit_passes_while_a_server_waits_for_something_else(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match="was not ready after 2 s"):
        _start(monkeypatch, tiny_model, tmp_path, "waits", "-")


def test_seconds_of_compilation_are_given_back_once() -> None:
    limit = StartLimit(10, now=100)
    assert not limit.is_over(105, compiling=False)
    assert not limit.is_over(405, compiling=True)
    assert limit.compiled == 300
    assert not limit.is_over(409, compiling=False)
    assert limit.is_over(411, compiling=False)


@contextmanager
def _somebody_compiles(starter: str, folder: Path) -> Iterator[None]:
    """Another process tree of this user's, in which ninja works below a process that has `starter` among its arguments."""
    folder.mkdir()
    ninja = shutil.copy("/bin/sleep", folder / "ninja")
    code = "import subprocess, sys; subprocess.run([sys.argv[2], '60'], cwd=sys.argv[3])"
    tree = subprocess.Popen([sys.executable, "-c", code, starter, ninja, folder], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(tree.pid, signal.SIGKILL)
        tree.wait()


@pytest.mark.nightly
@pytest.mark.parametrize(("starter", "is_a_server"), [("sglang.launch_server", True), ("make", False)])
def test_the_limit_does_not_run_while_another_server_compiles_what_this_one_may_wait_for(
    starter: str, is_a_server: bool, monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tmp_path: Path
) -> None:
    refused = pytest.raises(ServerError, match="was not ready after 2 s")
    with _somebody_compiles(starter, tmp_path / "other"), nullcontext() if is_a_server else refused:
        _start(monkeypatch, tiny_model, tmp_path, "waits", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        (None, "importing its packages"),
        ("UserWarning: Triton is not supported\n", "importing its packages"),
        ("server_args={'model_path': 'm'}\n[03:32:47] Load weight begin. avail mem=19.20 GB\n", "loading weights"),
        ("Load weight begin.\nLoad weight end. elapsed=0.02 s\n", "setting up its cache"),
        ("Load weight end.\nCapture cuda graph begin.\n", "capturing CUDA graphs"),
        ("Load weight end.\nThe server is fired up and ready to roll!\n", "answering"),
    ],
)
def test_the_latest_phase_of_the_log_is_told(tmp_path: Path, text: str | None, phase: str) -> None:
    log = tmp_path / "server.log"
    if text is not None:
        log.write_text(text)
    assert phase_in(log) == phase


def test_a_compiler_that_hangs_ends_the_start_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("dagrpo.engine.sglang.startup.MOST_SECONDS_OF_COMPILATION", 1.0)
    (tmp_path / "sampling").mkdir()
    with pytest.raises(ServerError, match=r"waited for 1 s for sampling to be compiled.*ninja.*dagrpo warm.*MAX_JOBS"):
        _start(monkeypatch, tiny_model, tmp_path, "ninja", str(tmp_path / "sampling"))
