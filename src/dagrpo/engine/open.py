"""Open an engine, with servers of this stage or servers elsewhere."""

import hashlib
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, CastTensors, Tensors
from dagrpo.core.errors import UserError
from dagrpo.core.section import HeadDtype
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.adapters import Adapter, AdapterFolders
from dagrpo.engine.sglang.client import Endpoint, ServerClient
from dagrpo.engine.sglang.own_servers import start_all
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.engine.sglang.tensor_sync import obstacle_to_sharing, sync_device
from dagrpo.engine.sglang.weights import WeightsFolder, make_writable
from dagrpo.engine.version import new_version
from dagrpo.utils.console import say

API_KEY_VARIABLE = "SGLANG_API_KEY"  # of servers that run elsewhere
MOST_OPEN_FILES = 65_536


@contextmanager
def open_engine(
    model: Path,
    params: EngineConfig,
    log: Path,
    *,
    dtype: str,
    deterministic: bool,
    head_dtype: HeadDtype = None,
    weights: Tensors | None = None,
    version: str = "initial",
    keep_pictures: bool = False,
    adapter: Adapter | None = None,
) -> Iterator[ServerPool]:
    """Open an engine that holds `weights`, else those of the folder `model`, whatever its servers held before.

    `model` is a folder with configuration and tokenizer; without `weights`, also with weights in the Hugging Face layout.
    Without `params.servers`, servers are started for it and stopped at the end; their output goes to `log` and files beside it.
    Servers that run elsewhere are exclusive to this process until the end. `weights` is read while the engine is opened, and not
    afterwards. `version` is the weights' name in completions. `keep_pictures`: whether the vision tower does not change, so that a server
    of our own may cache its outputs. With an `adapter` the weights stay in the servers, `version` is that of the adapter, and `load` gets
    tensors of its form. UserError and ServerError say in one sentence what cannot be used.
    """
    raise_open_files()
    with ExitStack() as stack:
        loop = stack.enter_context(BackgroundLoop())
        if params.servers:
            yield _pool_of_servers_elsewhere(
                stack, loop, model, params, dtype=dtype, weights=weights, version=version, adapter=adapter
            )
            return
        folder = stack.enter_context(WeightsFolder(model, _weights_folder(params)))
        device = device_of_sync(params, loads=weights is not None and adapter is None)
        name = new_version(version)
        start = partial(
            SGLangServer,
            model if weights is None else folder.write(weights),
            params,
            dtype=dtype,
            head_dtype=head_dtype,
            deterministic=deterministic,
            version=name.sent,
            keep_pictures=keep_pictures,
            adapter=None if adapter is None else adapter.form,
        )
        servers = start_all(stack, params, log, lambda log, gpus: start(log=log, only_gpus=gpus))
        folder.remove_weights()  # in memory, as a rule, and read
        pool = ServerPool(
            _clients(stack, loop, [server.endpoint for server in servers], params),
            loop,
            folder,
            name,
            leaves=params.release_memory,
            keeps_all=deterministic,
            adapters=None if adapter is None else AdapterFolders(adapter.form, folder),
            sync_device=device,
        )
        if adapter is not None:
            _serve(adapter, pool, folder, version)
        yield pool


def raise_open_files() -> None:
    """Raise the limit of open files of this process and its servers to the user's, up to MOST_OPEN_FILES.

    Each running request is a connection at both ends, and systems begin with 1,024 files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _pool_of_servers_elsewhere(
    stack: ExitStack,
    loop: BackgroundLoop,
    model: Path,
    params: EngineConfig,
    *,
    dtype: str,
    weights: Tensors | None,
    version: str,
    adapter: Adapter | None,
) -> ServerPool:
    """Return a pool of servers that run elsewhere, once they hold the weights, and serve the adapter if there is one."""
    parent = _weights_folder(params)
    if parent is None:
        raise UserError(
            f"runtime.engine.servers names {', '.join(params.servers)}, which cannot see this machine's memory: set "
            "runtime.engine.weights_folder to a folder that this machine and the servers see under the same path."
        )
    folder = stack.enter_context(WeightsFolder(model, parent))
    _take_turns(stack, parent, params.servers)
    key = os.environ.get(API_KEY_VARIABLE)
    endpoints = [Endpoint(address=address, api_key=key) for address in params.servers]
    clients = _clients(stack, loop, endpoints, params)
    of_weights = ServerPool(clients, loop, folder, new_version(version))
    if weights is None:
        weights = CastTensors(HuggingFaceTensors(model), NAMED_DTYPES[dtype])  # as a server that starts with it does
    of_weights.load(weights, version)
    if adapter is None:
        return of_weights
    adapters = AdapterFolders(adapter.form, folder)
    of_adapters = ServerPool(clients, loop, folder, new_version(version), adapters=adapters)
    _serve(adapter, of_adapters, folder, version)
    return of_adapters


def _serve(adapter: Adapter, pool: ServerPool, folder: WeightsFolder, version: str) -> None:
    """Load an adapter into servers that hold their weights; the files of the weights, which are not read again, are removed first."""
    folder.remove_weights()
    pool.load(adapter.tensors, version)


def may_sync_tensors(params: EngineConfig) -> bool:
    """Return whether the weights of these parameters may travel as tensors on a GPU that trainer and server share."""
    alone = params.gpus == 1 and not params.own_gpus and not params.servers
    return params.weight_sync == "tensors" or (params.weight_sync is None and alone)


def device_of_sync(params: EngineConfig, *, loads: bool = True) -> torch.device | None:
    """Return the device of buckets of weights for the servers of these parameters; None: their weights travel in the folder.

    `loads`: whether they get new weights: for others, null tries nothing on the GPU. Raises UserError if tensors were asked for,
    which the server could not open.
    """
    gpu = torch.cuda.is_available()
    if not may_sync_tensors(params) or (params.weight_sync is None and not (gpu and loads)):
        return None
    device = sync_device(gpu)
    obstacle = obstacle_to_sharing(device)
    if obstacle is None:
        return device
    if params.weight_sync == "tensors":
        raise UserError(
            f"runtime.engine.weight_sync is tensors, but {obstacle}: use PyTorch's own allocator without expandable segments, or set "
            "weight_sync to folder."
        )
    say(f"Weights reach the server as files, and not by CUDA IPC: {obstacle}.")
    return None


def _weights_folder(params: EngineConfig) -> Path | None:
    return None if params.weights_folder is None else Path(params.weights_folder).absolute()


def _clients(
    stack: ExitStack, loop: BackgroundLoop, endpoints: Sequence[Endpoint], params: EngineConfig
) -> list[ServerClient]:
    clients = [ServerClient(each, params.request_timeout, params.max_running_requests) for each in endpoints]
    for client in clients:
        stack.callback(_close, loop, client)
    return clients


def _close(loop: BackgroundLoop, client: ServerClient) -> None:
    loop.run(client.close())


def _take_turns(stack: ExitStack, folder: Path, servers: Sequence[str]) -> None:
    """Wait until no other stage uses one of these servers: they hold the weights of one stage at a time."""
    make_writable(folder)
    # One order in every process, so that no two wait for each other.
    for address in sorted({address.rstrip("/") for address in servers}):
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        lock = FileLock(folder / f"dagrpo-server-{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{address} is used by another stage: waiting for it.")
            lock.acquire()
        stack.callback(lock.release)
