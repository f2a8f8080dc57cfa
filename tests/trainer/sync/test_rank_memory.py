"""Ranks (gloo) that hand buckets of shared memory to the scripted servers beside them, and return memory before these take it."""

import hashlib
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.pools import STARTED_WITH
from tests.engine.scripted import Hangup, ScriptedServer
from tests.everyday import everyday
from tests.trainer import runs
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.manifest import write_manifest
from dagrpo.checkpoints.tensors import Tensors, raw_bytes
from dagrpo.core.errors import UserError
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.http import Endpoint
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang import Config
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.connect import device_of_sync
from dagrpo.engine.sglang.tensor_sync import SharedMemory, buckets, lots
from dagrpo.engine.weight_files import WeightsFolder
from dagrpo.models.fresh import make_fresh
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import World, single_process

MOST = 3000  # bytes of a bucket
DIES_AT = 3  # bucket
MORE = {"head_dim": 8, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2}


def _make(folder: Path, experts: bool) -> Path:
    make_fresh(folder / "source", runs.SHAPE, torch.float32)
    if experts:
        sizes = json.loads((folder / "source" / "config.json").read_text())
        kept = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{key: sizes[key] for key in kept}, **MORE))
        model.save_pretrained(folder / "source")
        write_manifest(folder / "source", "huggingface", HuggingFaceTensors(folder / "source"))
    convert(folder / "source", folder / "initial", Checkpoint.model_validate({"format": "dcp"}))
    return folder / "initial"


def _digest(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {[*tensor.shape]} {hashlib.sha256(raw_bytes(tensor)).hexdigest()}"


def _expected(initial: Path) -> dict[str, str]:
    """What one process would hand over."""
    world = single_process()
    with GatheredWeights(load_policy(initial, world).model, torch.bfloat16, world).reading() as tensors:
        return {name: _digest(tensors.read(name)) for name in tensors.specs}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ranks", "servers", "each", "experts"),
    [(2, 2, 1, False), (3, 1, 2, True)],
    ids=["two servers", "one of two ranks, with experts"],
)
def test_every_rank_of_every_server_reads_the_weights_of_one_process_byte_for_byte_from_the_rank_on_its_gpu(
    ranks: int, servers: int, each: int, experts: bool, tmp_path: Path
) -> None:
    pytest.importorskip("sglang")
    initial = _make(tmp_path, experts)
    (held, peaks, _), *_ = runs.launch(ranks, _hand_over, initial, tmp_path, servers, each, False)
    assert held == [[_expected(initial)] * each] * servers
    of_servers = servers * each
    assert peaks == [_one_bucket(initial)] * of_servers + [0] * (ranks - of_servers), "one bucket at a time"


def _one_bucket(initial: Path) -> int:
    """Bytes of the largest bucket in /dev/shm, where torch counts its openings in 64 more."""
    world = single_process()
    specs = GatheredWeights(load_policy(initial, world).model, torch.bfloat16, world).specs
    return 64 + max(sum(-(-specs[name].bytes // 16) * 16 for name in names) for names in lots(specs, MOST))


def test_a_server_that_dies_midway_leaves_the_other_one_the_whole_weights_and_its_rank_one_bucket(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sglang")
    initial = _make(tmp_path, experts=False)
    (((survivor,), (dead,)), peaks, left), (_, _, left_of_rank_1) = runs.launch(
        2, _hand_over, initial, tmp_path, 2, 1, True
    )
    assert survivor == _expected(initial)
    assert 0 < len(dead) < len(survivor)
    assert left == 0
    assert left_of_rank_1 <= _one_bucket(initial), "what the dead one never closed, once, however many buckets follow"
    assert peaks[1] <= _one_bucket(initial)


def _shared_bytes(pid: int) -> int:
    return sum(path.stat().st_size for path in Path("/dev/shm").glob(f"torch_{pid}_*"))


class Beside:
    """A server that opens its handles with SGLang's unpickler, and keeps digests of what is there."""

    def __init__(self, look: Callable[[], None], *, dies: bool) -> None:
        self.held: defaultdict[int, dict[str, str]] = defaultdict(dict)
        self._look, self._dies, self._buckets = look, dies, 0

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/update_weights_from_tensor":
            self._look()
            self._buckets += 1
            if self._dies and self._buckets >= DIES_AT:
                raise Hangup
            for rank, handle in enumerate(body["serialized_named_tensors"]):
                self._read(rank, handle)
        return 200, {"success": True}

    def _read(self, rank: int, handle: str) -> None:
        from sglang.srt.utils.common import MultiprocessingSerializer, normalize_serialized_named_tensor_payloads
        from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket, FlattenedTensorMetadata

        (content,) = normalize_serialized_named_tensor_payloads([handle])
        read = MultiprocessingSerializer.deserialize(content)
        fields = FlattenedTensorMetadata.__annotations__
        parts = [FlattenedTensorMetadata(**{key: getattr(part, key) for key in fields}) for part in read["metadata"]]
        bucket = FlattenedTensorBucket(flattened_tensor=read["flattened_tensor"], metadata=parts)
        for name, tensor in bucket.reconstruct_tensors():
            assert name not in self.held[rank], "read twice"
            self.held[rank][name] = _digest(tensor)


class Obstructed(SharedMemory):
    """Memory of a rank that is first asked whether a server can open it."""

    def __init__(self, rank: int) -> None:
        super().__init__(torch.device("cpu"))
        self._answers = ["no server may look at rank 1"] if rank == 1 else []

    def obstacle(self) -> str | None:
        return self._answers.pop() if self._answers else None


def _require_every_rank_asked(weights: GatheredWeights) -> None:
    """One server has rank 0's memory alone; two are refused for what rank 1 says, once."""
    two = Config(weight_sync="tensors", replicas=2)
    assert device_of_sync(Config(weight_sync="tensors"), weights) == torch.device("cpu")
    with pytest.raises(UserError, match="weight_sync is tensors, but no server may look at rank 1"):
        device_of_sync(two, weights)
    assert device_of_sync(two, weights) == torch.device("cpu")
    assert device_of_sync(two.model_copy(update={"replicas": 4}), weights) is None, "more GPUs than ranks"


Held = list[list[dict[str, str]]]


def _hand_over(
    world: World, initial: Path, out: Path, servers: int, each: int, dies: bool
) -> tuple[Held, list[int], int]:
    """Return what each rank of each server read, the most bytes of each trainer's memory at a request, and what is left of this one's."""
    weights = GatheredWeights(load_policy(initial, world).model, torch.bfloat16, world, memory=Obstructed(world.rank))
    pids, lock = world.gather(os.getpid()), threading.Lock()
    if not world.is_rank_zero:
        weights.give_parts()
        return [], [], _shared_bytes(os.getpid())
    peaks = [0] * world.size

    def look() -> None:
        with lock:
            peaks[:] = map(max, peaks, map(_shared_bytes, pids))

    scripts = [Beside(look, dies=dies and number == 1) for number in range(servers)]
    with BackgroundLoop() as loop, WeightsFolder(out, out / "weights") as folder:
        clients = [ServerClient(Endpoint(address=ScriptedServer(script).address), 5) for script in scripts]
        cut = partial(buckets, memory=SharedMemory(torch.device("cpu")), each=each, most=MOST)
        pool = ServerPool(clients, loop, folder, STARTED_WITH, buckets=cut)
        with weights.reading() as tensors:
            _require_every_rank_asked(weights)
            pool.load(tensors, "step_1")
        for client in clients:
            loop.run(client.close())
    return [[*script.held.values()] for script in scripts], peaks, _shared_bytes(os.getpid())


FREED = ["rank 0 frees", "rank 1 frees"]
EVENTS = {
    "folder": [*FREED, "server takes weights", "server takes kv_cache"],
    "tensors": ["server takes weights", *FREED, "server takes kv_cache"],
}


def _note(out: Path, event: str) -> None:
    with (out / "events").open("a") as file:
        file.write(f"{event}\n")


def _return_late(out: Path, rank: int) -> None:
    time.sleep(0.3 * rank)  # a server that waits for nobody would be first
    _note(out, f"rank {rank} frees")


def _return_memory(world: World, initial: Path, out: Path, road: str) -> None:
    memory = SharedMemory(torch.device("cpu"))
    weights = GatheredWeights(load_policy(initial, world).model, torch.float32, world, memory=memory)
    torch.cuda.empty_cache = partial(_return_late, out, world.rank)
    if not world.is_rank_zero:
        weights.give_parts()
        return

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/resume_memory_occupation":
            _note(out, f"server takes {body['tags'][0]}")
        return 200, {"success": True}

    cut = partial(buckets, memory=memory) if road == "tensors" else None
    with BackgroundLoop() as loop, WeightsFolder(out, out / "weights") as folder:
        client = ServerClient(Endpoint(address=ScriptedServer(answer).address), 5)
        pool = ServerPool([client], loop, folder, STARTED_WITH, leaves=True, buckets=cut)
        pool.release_memory()
        with weights.reading() as tensors:
            pool.load(tensors, "step_1")
        loop.run(client.close())


@pytest.mark.parametrize("road", everyday(["tensors"], EVENTS))
def test_both_ranks_return_gathered_weights_before_a_server_takes_its_cache_back(
    road: str, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    runs.launch(2, _return_memory, inputs[0], tmp_path, road)
    assert (tmp_path / "events").read_text().splitlines() == EVENTS[road]


class Noted(runs.ScriptedEngine):
    """Notes when it gets weights."""

    out: Path

    def load(self, weights: Tensors, version: str) -> None:
        _note(self.out, "server takes weights")
        super().load(weights, version)


def _train(world: World, inputs: tuple[Path, Path], out: Path) -> None:
    Noted.out = out
    run = runs.training_run(inputs, out / "state", out, steps=2)
    torch.cuda.empty_cache = partial(_return_late, out, world.rank)
    runs.execute(runs.changed(run, runtime={"engine": {"release_memory": True}}), Noted, world)


def test_every_rank_returns_its_memory_before_a_server_comes_back(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """A server gets weights at its opening and after the first of two steps."""
    runs.launch(2, _train, inputs, tmp_path)
    assert (tmp_path / "events").read_text().splitlines() == [*FREED, "server takes weights"] * 2
