"""Start, watch and stop an SGLang server for a model folder.

The server is SGLang's own, unmodified: on a CPU the package dagrpo-sglang-cpu supplies what it lacks there. One server, one
device; ../servers.py starts several, and runtime.engine.servers names those that run elsewhere.
"""

import errno
import math
import os
import secrets
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from dagrpo.checkpoints.weight_map import INDEX, files_of_weights
from dagrpo.core.errors import UserError
from dagrpo.engine.config import POLICY, REWARD_MODEL
from dagrpo.engine.errors import ServerError, cause_of_death, last_line_of, names_a_taken_port
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import WITHOUT_WEIGHTS, new_version
from dagrpo.engine.sglang import NOT_WITH_PICTURES, SERVED_PATCH_SIZES, Config, require_divided
from dagrpo.engine.sglang.command import (
    HOST,
    Kind,
    Serving,
    divided_environment,
    picture_environment,
    server_command,
    server_environment,
    shared_environment,
    write_settings,
)
from dagrpo.engine.sglang.startup import SECONDS_BETWEEN_CHECKS, wait_until_ready
from dagrpo.models.pictures import PREPROCESSOR, takes_pictures
from dagrpo.utils import addresses
from dagrpo.utils.child_variables import interface_of, sockets_between_nodes
from dagrpo.utils.console import waiting
from dagrpo.utils.devices import VISIBLE
from dagrpo.utils.files import read_object
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
        port: int | None = None,
        only_gpus: str | None = None,
        **serving: Any,
    ) -> None:
        """Store the settings; `begin` starts the server.

        `port` None: any free one. `only_gpus`: those that it sees, by index or UUID, with commas; None: all that this process sees, of
        which it takes the first ones. `serving`: further fields of Serving.
        """
        self.serving = Serving(model=model, config=config, **serving)
        self._log = log
        self._wanted_port = port
        self._only_gpus = only_gpus
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
        return f"http://{self.serving.host}:{self._port}"

    @property
    def endpoint(self) -> Endpoint:
        """Return its address and key for a client, once started."""
        return Endpoint(address=self.address, api_key=self.api_key, diagnose=self.diagnose)

    @property
    def answers_requests(self) -> bool:
        """Return False for a part of a server whose first machine answers."""
        return self.serving.part is None or self.serving.part.number == 0

    @property
    def process(self) -> WatchedProcess:
        """Return its main process, which leads the group of all of its processes."""
        assert self._process is not None, "not started"
        return self._process

    def begin(self) -> None:
        """Start it without waiting until it is ready, which entering the context does."""
        if self.serving.has_weights:
            require_servable(self.serving.model, self.serving.ranks)
        self._port = free_port(self._wanted_port, self.serving.host)
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
                wait_until_ready(self, self.serving.config.start_timeout, self._log, tell)
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
        version, has_weights = new_version(WITHOUT_WEIGHTS).sent, self.serving.adapter is not None
        again.serving = replace(self.serving, version=version, has_weights=has_weights)
        again._wanted_port, again._dead_worker, again._ready_at = self._port, None, 0
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
        serving, config = self.serving, self.serving.config
        section = REWARD_MODEL if serving.classifies else POLICY
        if device == "cpu" and (reason := config.without_a_gpu) is not None:
            raise UserError(f"{section}.{reason}.")
        if device == "cuda" and self._only_gpus is None and (config.replicas > 1 or config.own_gpus):
            raise UserError(
                f"{section} asks for servers on separate GPUs, but neither {VISIBLE} nor nvidia-smi nor the driver counts this machine's: "
                f"export {VISIBLE} with their numbers, such as 0,1."
            )
        scratch = self._resources.enter_context(temporary_folder(Path(tempfile.gettempdir()), "sglang"))
        settings = write_settings(scratch, self.api_key)
        pictures = takes_pictures(serving.model)
        inherited = os.environ | ({} if self._only_gpus is None else {VISIBLE: self._only_gpus})
        environment = server_environment(
            inherited, scratch, device, leaves=config.release_memory, threads=config.threads
        )
        if (config.weight_sync == "distributed" and serving.host != HOST) or serving.part is not None:
            environment |= sockets_between_nodes(interface_of(serving.host))
        environment |= divided_environment(serving.ranks, device)
        if serving.part is not None:
            environment |= shared_environment(serving.part)
        if pictures:
            environment |= picture_environment(deterministic=serving.deterministic, keep=serving.keep_pictures)
        command = server_command(serving, port, settings, device=device, pictures=pictures)
        return WatchedProcess(command, environment=environment, log=self._log, scratch=scratch)

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
    try:
        return addresses.free_port(host, wanted or 0)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        what = f"Port {wanted} of {host} is in use" if wanted else f"No port of {host} is free"
        raise ServerError(f"{what}: stop what holds it, then run again.") from None


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def require_servable(model: Path, ranks: int = 1) -> None:
    """Raise UserError, before a slow start, if SGLang could not serve a folder.

    The message says which file is missing, what is wrong with its index, or why `ranks` ranks cannot divide the model.
    """
    missing = _missing_from(model)
    if missing is not None:
        raise ServerError(f"{model} cannot be served, it has no {missing}: run the stage that makes this model again.")
    if (model / INDEX).is_file():  # SGLang opens what it names
        files_of_weights(model)
    _require_served_patches(model)
    if ranks > 1:
        _require_divided(model, ranks)


def _require_divided(model: Path, ranks: int) -> None:
    if takes_pictures(model):
        raise ServerError(f"{model}: tensor_parallel is {ranks}, {NOT_WITH_PICTURES}.")
    config = read_object(model / "config.json")
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads")
    if heads:
        inner = math.gcd(*(text.get(width) or 0 for width in ("intermediate_size", "moe_intermediate_size")))
        require_divided(heads, text.get("num_key_value_heads") or heads, inner, ranks, f"{model}: tensor_parallel")


def _require_served_patches(model: Path) -> None:
    config = read_object(model / "config.json")
    patch_size = (config.get("vision_config") or {}).get("patch_size")
    served = SERVED_PATCH_SIZES.get(config.get("model_type", ""), patch_size)
    if patch_size != served:
        raise ServerError(
            f"{model} cannot be served: it has patches of {patch_size} pixels, and SGLang sees a {config['model_type']} with "
            f"patches of {served} alone: set model.fresh.vision.patch_size to {served}, or take another family."
        )


def _missing_from(model: Path) -> str | None:
    if not (model / "config.json").is_file():
        return "config.json"
    if not any((model / name).is_file() for name in TOKENIZER_FILES):
        return "tokenizer (tokenizer.json)"
    if not (model / INDEX).is_file() and not any(model.glob("*.safetensors")):
        return "weights (*.safetensors)"
    if takes_pictures(model) and not (model / PREPROCESSOR).is_file():
        return f"{PREPROCESSOR}, which says how its pictures are prepared"
    return None
