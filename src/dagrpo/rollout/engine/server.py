"""Starts an SGLang server for a model folder, watches it, and stops it.

The server is SGLang's own, unmodified: on a CPU the package dagrpo-sglang-cpu supplies what it lacks there. One server, one
device; whoever needs more runs servers elsewhere and names them in runtime.engine.servers.
"""

import errno
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import urllib3

from dagrpo.files import read_json
from dagrpo.params.runtime import Engine
from dagrpo.rollout.engine.client import RolloutClient
from dagrpo.rollout.engine.command import HOST, server_command, server_environment, write_settings
from dagrpo.rollout.engine.errors import ServerError, last_line_of, reason_in
from dagrpo.rollout.engine.process import WatchedProcess

__all__ = ["SGLangServer", "ServerError", "serving"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
SECONDS_BETWEEN_CHECKS = 0.1
API_KEY_VARIABLE = "SGLANG_API_KEY"  # of servers that run elsewhere


@contextmanager
def serving(model: Path, engine: Engine, log: Path, *, dtype: str, deterministic: bool) -> Iterator[RolloutClient]:
    """A client of the servers that run elsewhere, or of one that is started for the model and stopped at the end.

    ServerError when the server cannot be started, in one sentence with the log's path.
    """
    if engine.servers:
        yield RolloutClient(engine.servers, engine.request_timeout, api_key=os.environ.get(API_KEY_VARIABLE))
        return
    with SGLangServer(model, engine, log, dtype=dtype, deterministic=deterministic) as server:
        yield RolloutClient([server.address], engine.request_timeout, api_key=server.api_key, diagnose=server.diagnose)


class SGLangServer:
    """A server on loopback, as a context manager: ready inside the block, gone after it, with all its processes.

    Should one of its processes die in between, the rest are killed, so that whoever waits for an answer knows at once.
    """

    def __init__(
        self,
        model: Path,
        engine: Engine,
        log: Path,
        *,
        dtype: str = "float32",
        deterministic: bool = True,
        port: int | None = None,
    ) -> None:
        """Nothing is started yet. `deterministic` matters on a GPU only. `port` None: any free one."""
        self._model = model
        self._engine = engine
        self._log = log
        self._dtype = dtype
        self._deterministic = deterministic
        self._port = port
        self._process: WatchedProcess | None = None
        self._ready_at = 0  # length of the log when the server was ready
        self._dead_worker: str | None = None
        self._stopping = threading.Event()
        self.api_key = secrets.token_hex(32)  # of urlsafe ones, one in 64 begins with "-": a flag, to SGLang

    @property
    def address(self) -> str:
        """Where it listens, once started."""
        return f"http://{HOST}:{self._port}"

    @property
    def process(self) -> WatchedProcess:
        """Its main process, which leads the group of all of its processes."""
        assert self._process is not None, "not started"
        return self._process

    def __enter__(self) -> Self:
        require_servable(self._model)
        self._port = free_port(self._port)
        self._process = self._launch(self._port)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self._ready_at = self._log.stat().st_size
        threading.Thread(target=self._watch_workers, name="sglang-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill it and everything it started. May be called again."""
        self._stopping.set()
        if self._process is not None:
            self._process.stop()

    def diagnose(self) -> str | None:
        """Why it does not answer, in one sentence, if it is dead; None if it is alive."""
        code = self.process.exit_code()
        if code is None:
            return None
        what = "The SGLang server died" if self._ready_at else "The SGLang server died while it was starting"
        how = self._dead_worker or (f"exit code {code}" if code >= 0 else f"killed by signal {-code}")
        reason = reason_in(self._log, self._ready_at) or (last_line_of(self._log) if code >= 0 else "no reason given")
        return f"{what} ({how}): {reason} (log: {self._log})"

    def _launch(self, port: int) -> WatchedProcess:
        import torch  # slow to import, and not needed to use servers that run elsewhere

        gpu = torch.cuda.is_available()
        scratch = Path(tempfile.mkdtemp(prefix="dagrpo-sglang-"))
        settings = scratch / "settings.yaml"
        write_settings(settings, self.api_key)
        return WatchedProcess(
            server_command(
                self._model, self._engine, port, settings, dtype=self._dtype, gpu=gpu, deterministic=self._deterministic
            ),
            environment=server_environment(os.environ, scratch, gpu=gpu),
            log=self._log,
            scratch=scratch,
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._engine.start_timeout
        headers = {"Authorization": f"Bearer {self.api_key}"}
        with urllib3.PoolManager(headers=headers, retries=False, timeout=5.0) as http:
            while not self._answers(http, "GET", "/health"):
                failure = self.diagnose()
                if failure is not None:
                    raise ServerError(failure)
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"The SGLang server was not ready after {self._engine.start_timeout} s: raise "
                        f"runtime.engine.start_timeout; it last said: {last_line_of(self._log)} (log: {self._log})"
                    )
                time.sleep(SECONDS_BETWEEN_CHECKS)
            self._answers(http, "POST", "/freeze_gc")  # emptying the cache collects garbage: 0.4 s otherwise

    def _answers(self, http: urllib3.PoolManager, method: str, path: str) -> bool:
        try:
            return http.request(method, self.address + path).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def _watch_workers(self) -> None:
        """SGLang itself notices a dead scheduler after seconds, a dead detokenizer after a minute."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        workers = {child: child.name() for child in children if child.name().startswith("sglang")}
        while not self._stopping.wait(SECONDS_BETWEEN_CHECKS):
            dead = [name for worker, name in workers.items() if not _is_alive(worker)]
            if dead:
                self._dead_worker = f"its process {dead[0]} ended"
                self.process.kill_group()
                return


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port(wanted: int | None) -> int:
    """A port of loopback that nothing listens on; ServerError when there is none, or the wanted one is taken."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, wanted or 0))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            what = f"Port {wanted} of {HOST} is in use" if wanted else f"No port of {HOST} is free"
            raise ServerError(f"{what}: stop what holds it, then run again.") from None
        return int(probe.getsockname()[1])


def require_servable(model: Path) -> None:
    """Refuse, before a slow start, a folder that SGLang could not serve; ServerError names what is missing."""
    missing = _missing_from(model)
    if missing is not None:
        raise ServerError(f"{model} cannot be served, it has no {missing}: run the stage that makes this model again.")


def _missing_from(model: Path) -> str | None:
    if not (model / "config.json").is_file():
        return "config.json"
    if not any((model / name).is_file() for name in TOKENIZER_FILES):
        return "tokenizer (tokenizer.json)"
    index = model / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(read_json(index)["weight_map"].values()))
        return next((shard for shard in shards if not (model / shard).is_file()), None)
    return None if any(model.glob("*.safetensors")) else "weights (*.safetensors)"
