"""Open SGLang, with servers of this stage or servers elsewhere."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, CastTensors, Tensors
from dagrpo.core.errors import UserError
from dagrpo.core.section import HeadDtype
from dagrpo.engine import may_share_memory
from dagrpo.engine.background import BackgroundLoop, all_of
from dagrpo.engine.config import FOLDER
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import Adapter, AdapterForm, Bucket, new_version
from dagrpo.engine.nodes import OF_NODES, is_served_by_nodes, on_nodes
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.servers import Part, lock_elsewhere, most_connections, raise_open_files, start_all
from dagrpo.engine.sglang import KEY_VARIABLE, Config
from dagrpo.engine.sglang.answers import MOST_TOKENS
from dagrpo.engine.sglang.broadcast import BroadcastGroup
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.command import HOST
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.engine.sglang.tensor_sync import SharedMemory, buckets, held_by_ranks, obstacle_to_sharing, sync_device
from dagrpo.engine.weight_files import AdapterFolders, WeightsFolder
from dagrpo.utils.console import say
from dagrpo.utils.distributed import first_address
from dagrpo.utils.files import read_object


@contextmanager
def open_sglang(
    model: Path,
    config: Config,
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
    """Open an engine as `dagrpo.engine.open_engine` describes, whatever its servers held before.

    Without `config.servers`, servers are started for it and stopped at the end. Servers that run elsewhere are exclusive to this
    process until the end.
    """
    raise_open_files()
    with ExitStack() as stack:
        loop = stack.enter_context(BackgroundLoop())
        if config.servers:
            yield _pool_elsewhere(
                stack, loop, model, config, dtype=dtype, weights=weights, version=version, adapter=adapter
            )
            return
        folder = stack.enter_context(WeightsFolder(model, _weights_folder(config)))
        device = device_of_sync(config, weights if adapter is None else None)
        name = new_version(version)
        options: dict[str, Any] = {
            "model": str((model if weights is None else folder.write(weights)).absolute()),
            "dtype": dtype,
            "head_dtype": head_dtype,
            "deterministic": deterministic,
            "version": name.sent,
            "keep_pictures": keep_pictures,
            "adapter": None if adapter is None else asdict(adapter.form),
        }
        group = _group_of(config) if adapter is None else None
        if is_served_by_nodes(config):
            endpoints = on_nodes(Path(os.environ[FOLDER]), config, log, options)
        else:
            make = partial(start_server, config, host=HOST, **options)
            endpoints = [server.endpoint for server in start_all(stack, config, log, make)]
        if adapter is None or not is_served_by_nodes(config):  # where a server may be started again with them
            folder.remove_weights()  # in memory, as a rule, and read
        pool = ServerPool(
            _clients(stack, loop, endpoints, config, model),
            loop,
            folder,
            name,
            leaves=config.release_memory,
            keeps_all=deterministic,
            adapters=None if adapter is None else AdapterFolders(adapter.form, folder),
            buckets=_cut(config, group, device),
            group=group,
        )
        if adapter is not None:
            pool.load(adapter.tensors, version)
        yield pool


def start_server(
    config: Config,
    log: Path,
    gpus: str | None,
    host: str,
    *,
    model: str,
    adapter: Mapping[str, Any] | None,
    part: Part | None = None,
    **options: Any,
) -> SGLangServer:
    """Return a server, or a part of one, of these arguments, which JSON can take but for `part`. It is not started."""
    form = None if adapter is None else TypeAdapter(AdapterForm).validate_python(adapter)
    return SGLangServer(Path(model), config, log, only_gpus=gpus, host=host, adapter=form, part=part, **options)


def _pool_elsewhere(
    stack: ExitStack,
    loop: BackgroundLoop,
    model: Path,
    config: Config,
    *,
    dtype: str,
    weights: Tensors | None,
    version: str,
    adapter: Adapter | None,
) -> ServerPool:
    """Return a pool of servers that run elsewhere, once they hold the weights, and serve the adapter if there is one."""
    parent = _weights_folder(config)
    if parent is None:
        raise UserError(
            f"runtime.engine.servers names {', '.join(config.servers)}, which cannot see this machine's memory: set "
            "runtime.engine.weights_folder to a folder that this machine and the servers see under the same path."
        )
    folder = stack.enter_context(WeightsFolder(model, parent, 0o755))  # a server elsewhere may be another user's
    lock_elsewhere(stack, parent, config.servers)
    key = os.environ.get(KEY_VARIABLE)
    endpoints = [Endpoint(address=address, api_key=key) for address in config.servers]
    clients = _clients(stack, loop, endpoints, config, model)
    of_weights = ServerPool(clients, loop, folder, new_version(version))
    if weights is None:
        weights = CastTensors(HuggingFaceTensors(model), NAMED_DTYPES[dtype])  # as a server that starts with it does
    of_weights.load(weights, version)
    if adapter is None:
        return of_weights
    adapters = AdapterFolders(adapter.form, folder)
    of_adapters = ServerPool(clients, loop, folder, new_version(version), adapters=adapters)
    folder.remove_weights()  # which are not read again
    of_adapters.load(adapter.tensors, version)
    return of_adapters


def _cut(
    config: Config, group: BroadcastGroup | None, device: torch.device | None
) -> Callable[[Tensors], Iterator[Bucket]] | None:
    """Return what cuts weights into buckets; None: they travel in the folder."""
    if group is not None:
        return group.buckets
    return None if device is None else partial(buckets, memory=SharedMemory(device), each=config.tensor_parallel)


def device_of_sync(config: Config, weights: Tensors | None) -> torch.device | None:
    """Return the device of buckets of weights for the servers of these parameters; None: their weights travel in the folder.

    `weights`: the first ones that a server gets; None: it keeps its own, for which null tries nothing on the GPU. Raises UserError if
    weight_sync is tensors, and a server could not open them.
    """
    gpu = torch.cuda.is_available()
    shared = held_by_ranks(weights)
    ranks = 1 if shared is None else shared.sharing_ranks
    if not may_share_memory(config, ranks) or (config.weight_sync is None and not (gpu and weights is not None)):
        return None
    device = sync_device(gpu)
    obstacle = obstacle_to_sharing(device) if shared is None else shared.obstacle(range(config.gpus))
    if obstacle is None:
        return device
    if config.weight_sync == "tensors":
        raise UserError(
            f"runtime.engine.weight_sync is tensors, but {obstacle}: use PyTorch's own allocator without expandable segments, or set "
            "weight_sync to folder."
        )
    say(f"Weights reach the servers as files, and not by CUDA IPC: {obstacle}.")
    return None


def _group_of(config: Config) -> BroadcastGroup | None:
    """Return the group in which weights are broadcast to the servers of other nodes; None: they travel otherwise."""
    if config.weight_sync != "distributed" or not is_served_by_nodes(config):
        return None
    device = sync_device(torch.cuda.is_available())
    return BroadcastGroup(first_address(), device, config.request_timeout, config.ranks)


def _weights_folder(config: Config) -> Path | None:
    if config.weights_folder is None:
        return OF_NODES.absolute() if is_served_by_nodes(config) else None
    return Path(config.weights_folder).absolute()


def _clients(
    stack: ExitStack, loop: BackgroundLoop, endpoints: Sequence[Endpoint], config: Config, model: Path
) -> list[ServerClient]:
    most = min(config.max_running_requests, most_connections(raise_open_files(), len(endpoints)))
    described = read_object(model / "config.json")
    vocabulary = (described.get("text_config") or described).get("vocab_size", MOST_TOKENS)
    clients = [ServerClient(each, config.request_timeout, most, vocabulary) for each in endpoints]
    stack.callback(lambda: loop.run(all_of(client.close() for client in clients)))
    return clients
