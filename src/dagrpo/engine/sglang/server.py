"""Start, watch and stop an SGLang server for a model folder.

The server is SGLang's own, unmodified: on a CPU the package dagrpo-sglang-cpu supplies what it lacks there. One server, one
device; ../servers.py starts several, and runtime.engine.servers names those that run elsewhere.
"""

import errno
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from dagrpo.core.errors import UserError
from dagrpo.core.section import HeadDtype
from dagrpo.engine.config import POLICY, REWARD_MODEL
from dagrpo.engine.errors import ServerError, cause_of_death, last_line_of, names_a_taken_port
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import WITHOUT_WEIGHTS, AdapterForm, new_version
from dagrpo.engine.servers import Part
from dagrpo.engine.sglang import Config
from dagrpo.engine.sglang.command import (
    HOST,
    Kind,
    divided_environment,
    picture_environment,
    server_command,
    server_environment,
    shared_environment,
    write_settings,
)
from dagrpo.engine.sglang.model_check import require_servable
from dagrpo.engine.sglang.startup import SECONDS_BETWEEN_CHECKS, wait_until_ready
from dagrpo.models.pictures import takes_pictures
from dagrpo.utils.child_variables import interface_of, sockets_between_nodes
from dagrpo.utils.console import waiting
from dagrpo.utils.devices import VISIBLE
from dagrpo.utils.tempdirs import temporary_folder
from dagrpo.utils.watched_process import MEMORY, WatchedProcess

PORTS_TO_TRY = 3  # two servers that start together may be given one port


class SGLangServer:
    """Server of this machine, as a context manager: ready inside the block, stopped after it, with all its processes.

    If one of its processes dies in between, the rest are killed, so that callers that wait for an answer get an error at once.
    """

    def __init__(
        self,
        model: Path,
        config: Config,
        log: Path,
        *,
        dtype: str = "float32",
        head_dtype: HeadDtype = None,
        deterministic: bool = True,
        version: str = "default",
        host: str = HOST,
        port: int | None = None,
        keep_pictures: bool = False,
        only_gpus: str | None = None,
        adapter: AdapterForm | None = None,
        classifies: bool = False,
        part: Part | None = None,
    ) -> None:
        """Store the settings; `begin` starts the server.

        `deterministic` matters on a GPU, and to models that accept pictures. `host`: the address of this machine at which it listens.
        `port` None: any free one. `version` is
        the server's name of its first weights. `keep_pictures`: see `picture_environment`. `only_gpus`: those that it sees,
        by index or UUID, with commas; None: all that this process sees, of which it takes the first ones. `adapter`: served beside
        the weights, if given. `classifies`: the model is a sequence classifier. `part`: of a server that several machines share; None:
        it is whole.
        """
        self._model = model
        self._config = config
        self._log = log
        self._dtype = dtype
        self._head_dtype = head_dtype
        self._deterministic = deterministic
        self._version = version
        self._host = host
        self._wanted_port = port
        self._has_weights = True
        self._keep_pictures = keep_pictures
        self._only_gpus = only_gpus
        self._adapter = adapter
        self._classifies = classifies
        self._part = part
        self._port = 0
        self._process: WatchedProcess | None = None
        self._begun = False
        self._ready_at = 0  # length of the log when the server was ready
        self._dead_worker: str | None = None
        self._stopping = threading.Event()
        self._resources = ExitStack()  # its scratch folder
        self.api_key = secrets.token_hex(32)  # token_urlsafe may begin with "-", which SGLang takes for a flag

    @property
    def address(self) -> str:
        """Return its address, once started."""
        return f"http://{self._host}:{self._port}"

    @property
    def endpoint(self) -> Endpoint:
        """Return its address and key for a client, once started."""
        return Endpoint(address=self.address, api_key=self.api_key, diagnose=self.diagnose)

    @property
    def _ranks(self) -> int:
        return self._config.tensor_parallel * (1 if self._part is None else self._part.of)

    @property
    def answers_requests(self) -> bool:
        """Return False for a part of a server whose first machine answers."""
        return self._part is None or self._part.number == 0

    @property
    def process(self) -> WatchedProcess:
        """Return its main process, which leads the group of all of its processes."""
        assert self._process is not None, "not started"
        return self._process

    def begin(self) -> None:
        """Start it without waiting until it is ready, which entering the context does."""
        if self._has_weights:
            require_servable(self._model, self._ranks)
        self._port = free_port(self._wanted_port, self._host)
        self._process = self._launch(self._port)
        self._begun = True

    def __enter__(self) -> Self:
        for _ in range(PORTS_TO_TRY - 1):
            try:
                return self._started()
            except ServerError:  # the port was free a moment ago, and another process has taken it
                if self._wanted_port or not names_a_taken_port(self._log):
                    raise
        return self._started()

    def _started(self) -> Self:
        if not self._begun:
            self.begin()
        with waiting(f"SGLang server, log {self._log}") as tell:
            try:
                wait_until_ready(self, self._config.start_timeout, self._log, tell)
            except BaseException:
                self.process.stop()
                self._resources.close()
                self._begun = False
                raise
        self._ready_at = self._log.stat().st_size
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.note_shared_memory()
        workers = {child: child.name() for child in children if child.name().startswith("sglang")}
        threading.Thread(target=self._watch, args=(workers,), name="sglang-watch", daemon=True).start()
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
        self._resources.close()

    def begun_again(self) -> Self:
        """Begin a server in the place of this one, which is dead, with its address and key; return it.

        Without an adapter it has no weights; with one it has the base weights and lacks the adapter.
        """
        self.stop()
        again = copy(self)
        again._stopping, again._resources = threading.Event(), ExitStack()
        again._wanted_port, again._has_weights = self._port, self._adapter is not None
        again._dead_worker, again._ready_at = None, 0
        again._version = new_version(WITHOUT_WEIGHTS).sent
        again.begin()
        return again

    def diagnose(self) -> str | None:
        """Return why it does not answer, in one sentence, if it is dead; None if it is alive."""
        code = self.process.exit_code()
        if code is None:
            return None
        what = "The SGLang server died" if self._ready_at else "The SGLang server died while it was starting"
        how = self._dead_worker or (f"exit code {code}" if code >= 0 else f"killed by signal {-code}")
        reason = cause_of_death(self._log, self._ready_at, (self._log, self.process.scratch, MEMORY))
        reason = reason or (last_line_of(self._log) if code >= 0 else "no reason given")
        return f"{what} ({how}): {reason} (log: {self._log})"

    def _launch(self, port: int) -> WatchedProcess:
        import torch

        device: Kind = "cuda" if torch.cuda.is_available() else "cpu"
        section = REWARD_MODEL if self._classifies else POLICY
        if device == "cpu" and (reason := self._config.without_a_gpu) is not None:
            raise UserError(f"{section}.{reason}.")
        if device == "cuda" and self._only_gpus is None and (self._config.replicas > 1 or self._config.own_gpus):
            raise UserError(
                f"{section} asks for servers on separate GPUs, but neither {VISIBLE} nor nvidia-smi nor the driver counts this machine's: "
                f"export {VISIBLE} with their numbers, such as 0,1."
            )
        scratch = self._resources.enter_context(temporary_folder(Path(tempfile.gettempdir()), "sglang"))
        settings = write_settings(scratch, self.api_key)
        pictures = takes_pictures(self._model)
        command = server_command(
            self._model,
            self._config,
            port,
            settings,
            dtype=self._dtype,
            head_dtype=self._head_dtype,
            device=device,
            deterministic=self._deterministic,
            version=self._version,
            pictures=pictures,
            adapter=self._adapter,
            classifies=self._classifies,
            host=self._host,
            has_weights=self._has_weights,
            part=self._part,
        )
        inherited = os.environ | ({} if self._only_gpus is None else {VISIBLE: self._only_gpus})
        environment = server_environment(
            inherited, scratch, device, leaves=self._config.release_memory, threads=self._config.threads
        )
        if (self._config.weight_sync == "distributed" and self._host != HOST) or self._part is not None:
            environment |= sockets_between_nodes(interface_of(self._host))
        environment |= divided_environment(self._ranks, device)
        if self._part is not None:
            environment |= shared_environment(self._part)
        if pictures:
            environment |= picture_environment(deterministic=self._deterministic, keep=self._keep_pictures)
        return WatchedProcess(
            command,
            environment=environment,
            log=self._log,
            scratch=scratch,
        )

    def _watch(self, workers: Mapping[psutil.Process, str]) -> None:
        """Watch the server's workers: SGLang itself notices a dead scheduler after seconds, a dead detokenizer after a minute."""
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


def free_port(wanted: int | None, host: str = HOST) -> int:
    """Return a free port of an address. Raises ServerError if all are taken, or the wanted one is."""
    with socket.socket() as probe:
        if wanted:  # as the server binds it: connections of the one before may be in TIME_WAIT
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted or 0))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            what = f"Port {wanted} of {host} is in use" if wanted else f"No port of {host} is free"
            raise ServerError(f"{what}: stop what holds it, then run again.") from None
        return int(probe.getsockname()[1])
