"""Weights that reach a server in buckets of memory are those that the folder gives it, byte for byte."""

import os
import shutil
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError
from safetensors.torch import load_file
from tests.engine.batches import batch
from tests.engine.conftest import Serve
from tests.engine.pools import STARTED_WITH, pool_over
from tests.engine.scripted import Echo, Script
from torch.distributed.distributed_c10d import _world
from torch.utils._python_dispatch import TorchDispatchMode

from dagrpo.checkpoints.tensors import CastTensors, StateTensors, TensorSpec, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.engine import may_share_memory, sglang
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.errors import ServerAway, ServerError
from dagrpo.engine.http import Endpoint
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang import connect, tensor_sync
from dagrpo.engine.sglang.broadcast import BroadcastGroup
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.connect import device_of_sync
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.engine.sglang.tensor_sync import Bucket, SharedMemory, buckets
from dagrpo.engine.weight_files import WeightsFolder

CPU = torch.device("cpu")
STATE = {
    "half": torch.arange(5, dtype=torch.bfloat16),
    "single": torch.randn(3, 7),
    "number": torch.tensor(3),
    "large": torch.randn(40),
}


class CountedTensors(StateTensors):
    """Remembers what was read."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__(state)
        self.names: list[str] = []

    def read(self, name: str) -> torch.Tensor:
        self.names.append(name)
        return super().read(name)


def opened(bucket: Bucket) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors and bytes of a bucket by SGLang's unpickler, copied, and closed again."""
    ((handle,),) = bucket.payloads([0])
    assert len(handle) < 4096, "handles travel, not values"
    common = pytest.importorskip("sglang.srt.utils.common")
    read = common.MultiprocessingSerializer.deserialize(b64decode(handle))
    flat = read["flattened_tensor"].clone()
    parts = read["metadata"]
    return {each.name: flat[each.start_idx : each.end_idx].view(each.dtype).reshape(each.shape) for each in parts}, len(
        flat
    )


@pytest.mark.parametrize(("most", "count"), [(1 << 20, 1), (150, 2), (1, 4)])
def test_every_tensor_is_read_once_and_lies_unchanged_in_one_bucket(most: int, count: int) -> None:
    weights = CountedTensors(STATE)
    cut = [(bucket.is_last, *opened(bucket)) for bucket in buckets(weights, SharedMemory(CPU), most=most)]
    assert weights.names == [*STATE]
    assert [is_last for is_last, _, _ in cut] == [False] * (count - 1) + [True]
    found = {name: tensor for _, tensors, _ in cut for name, tensor in tensors.items()}
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in STATE.items())
    assert all(size <= most or len(tensors) == 1 for _, tensors, size in cut)
    assert sum(size for _, _, size in cut) < total_bytes(weights) + 16 * len(STATE)


@contextmanager
def pool_at(serve: Serve, folder: Path, *scripts: Script, **options: Any) -> Iterator[ServerPool]:
    endpoints = [Endpoint(address=serve(script).address) for script in scripts]
    with pool_over(endpoints, folder, folder / "weights", 5, **options) as pool:
        yield pool


def test_shared_memory_without_room_for_a_bucket_is_refused_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = StateTensors({"w": torch.ones(250)})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    memory = SharedMemory(CPU)
    assert memory.hold(weights.specs, weights.read)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=999))
    with pytest.raises(
        UserError, match=r"/dev/shm has 999 bytes free.* takes 1,000: make room, or set .*weight_sync to folder"
    ):
        memory.hold(weights.specs, weights.read)


def test_a_server_that_refuses_a_bucket_is_not_given_the_new_version(serve: Serve, tmp_path: Path) -> None:
    asked: list[str] = []

    def refuse(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        refused = path == "/update_weights_from_tensor"
        return (400, {"success": False, "message": "no room"}) if refused else Echo()(path, body)

    with pool_at(serve, tmp_path, refuse, buckets=partial(buckets, memory=SharedMemory(CPU))) as pool:
        with pytest.raises(ServerError, match=r"refused /update_weights_from_tensor .*no room"):
            pool.load(StateTensors(STATE), "step_1")
        assert asked == ["/begin_weight_update", "/update_weights_from_tensor"]
        with pytest.raises(ServerError):  # it answers with the weights of before
            pool.generate(batch(prompts=1, samples=1), lockstep=False)


def test_a_server_that_has_left_its_gpu_has_room_for_its_cache_again_once_the_buckets_are_freed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(" ".join([path.partition("?")[0], *body.get("tags", [])]))
        return 200, {"success": True}

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("freed here"))
    with pool_at(serve, tmp_path, answer, leaves=True, buckets=partial(buckets, memory=SharedMemory(CPU))) as pool:
        pool.release_memory()
        asked.clear()
        pool.load(StateTensors(STATE), "step_1")
    assert asked == [
        "/resume_memory_occupation weights",
        "/begin_weight_update",
        "/update_weights_from_tensor",
        "freed here",
        "/end_weight_update",
        "/resume_memory_occupation kv_cache",
        "/flush_cache",
    ]


class Member(Echo):
    """Server of a group, which remembers the ranks and groups that it is told; it refuses paths that begin with `refuses`."""

    def __init__(self, *, forgets: bool) -> None:
        super().__init__()
        self.forgets, self.refuses = forgets, "nothing"
        self.joined: list[int] = []
        self.left: list[str] = []

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/init_weights_update_group":
            self.joined.append(body["rank_offset"])
        if path == "/destroy_weights_update_group":
            self.left.append(body["group_name"])
            return (400, {"message": "it does not exist"}) if self.forgets else (200, {"success": True})
        return (400, {"message": "no such group"}) if path.startswith(self.refuses) else super().__call__(path, body)


def test_servers_that_went_or_came_back_form_a_new_group_and_one_that_knows_no_group_starts_the_stage_again(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed: list[int] = []

    @contextmanager
    def form(servers: int) -> Iterator[Mapping[str, Any]]:
        formed.append(servers)
        yield {"group_name": f"{len(formed)}"}

    group = BroadcastGroup("127.0.0.1", CPU, 5, ranks_each=2)
    monkeypatch.setattr(group, "formed", form)
    monkeypatch.setattr(group, "broadcast", lambda flat: None)
    first, second = Member(forgets=True), Member(forgets=False)
    with pool_at(serve, tmp_path, first, second, buckets=group.buckets, group=group) as pool:
        for step in (1, 2):
            pool.load(StateTensors(STATE), f"step_{step}")
        assert (formed, first.joined, second.joined, second.left) == ([2], [1], [3], [])
        first.refuses = "/"
        pool._give_up(0, ServerAway("gone"))
        pool.load(StateTensors(STATE), "step_3")
        assert (formed, second.joined, second.left) == ([2, 1], [3, 1], ["1"])
        first.refuses = "nothing"
        pool.load(StateTensors(STATE), "step_4")
        assert (formed, first.joined, second.joined) == ([2, 1, 2], [1, 1], [3, 1, 3])
        assert (first.left, second.left) == (["2"], ["1", "2"])
        second.refuses = "/update_weights_from_distributed"
        with pytest.raises(ServerAway, match=r"refused /update_weights_from_distributed \(400\): no such group"):
            pool.load(StateTensors(STATE), "step_5")


def test_a_new_group_of_the_trainer_takes_the_place_of_the_one_before() -> None:
    """PyTorch keeps every group that is not destroyed, with its connections."""
    group = BroadcastGroup("127.0.0.1", CPU, 5)
    for _ in range(2):
        with group.formed(0):
            pass
        group.broadcast(torch.zeros(1, dtype=torch.uint8))
        assert len(_world.pg_map) == 1
    dist.destroy_process_group(group.abort())
    assert not _world.pg_map


def test_an_interrupted_sync_does_not_wait_for_its_servers_and_leaves_no_thread() -> None:
    """One that torch wakes while the interpreter ends would abort the process."""
    group = BroadcastGroup("127.0.0.1", CPU, 600)
    with pytest.raises(KeyboardInterrupt), group.formed(1):
        raise KeyboardInterrupt
    assert "broadcast" not in {thread.name for thread in threading.enumerate()}


def test_any_failure_of_a_broadcast_is_that_of_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    group = BroadcastGroup("127.0.0.1", CPU, 5)
    (bucket,) = group.buckets(StateTensors(STATE))

    def fail(flat: torch.Tensor) -> None:
        raise TypeError("no tensor")

    monkeypatch.setattr(group, "broadcast", fail)
    with pytest.raises(ServerAway, match="Weights could not be sent to all servers: no tensor"), bucket.sent():
        pass


def test_sglang_finds_tensors_of_all_types_in_a_broadcast() -> None:
    received = pytest.importorskip("sglang.srt.weight_sync.tensor_bucket").FlattenedTensorBucket
    (bucket,) = BroadcastGroup("127.0.0.1", CPU, 60).buckets(StateTensors(STATE))
    described = {key: value for key, value in bucket.described.items() if key != "group_name"}
    there = received.empty(**described, device="cpu")
    there.get_flattened_tensor().copy_(bucket.flat)
    found = dict(there.reconstruct_tensors())
    assert {name: tensor.dtype for name, tensor in found.items()} == {name: each.dtype for name, each in STATE.items()}
    assert all(torch.equal(found[name], each) for name, each in STATE.items())


@pytest.mark.server
def test_a_server_holds_and_samples_what_it_does_of_the_folder(
    server: SGLangServer, pool: ServerPool, tiny_model: Path
) -> None:
    state = {name: 1.1 * tensor for name, tensor in load_file(tiny_model / "model.safetensors").items()}
    requests = batch(prompts=8, samples=2)
    before = pool.generate(requests, lockstep=True)
    pool.load(StateTensors(state), "scaled")
    expected, digests = pool.generate(requests, lockstep=True), pool.digests()
    assert expected != before
    pool.load(StateTensors(load_file(tiny_model / "model.safetensors")), "first")
    largest = max(TensorSpec(dtype=t.dtype, shape=tuple(t.shape)).bytes for t in state.values())
    with BackgroundLoop() as loop, WeightsFolder(tiny_model, None) as folder:
        client = ServerClient(server.endpoint, 120)
        cut = partial(buckets, memory=SharedMemory(CPU), most=largest)
        synced = ServerPool([client], loop, folder, STARTED_WITH, buckets=cut)
        synced.load(StateTensors(state), "scaled")
        assert synced.digests() == digests
        assert synced.generate(requests, lockstep=True) == expected
        synced.load(StateTensors(load_file(tiny_model / "model.safetensors")), "first")
        group = BroadcastGroup("127.0.0.1", CPU, 60)
        broadcast = ServerPool(
            [client], loop, folder, STARTED_WITH, buckets=partial(group.buckets, most=largest), group=group
        )
        names = []
        for version in ("scaled again", "scaled"):
            broadcast.load(StateTensors(state), version)
            assert broadcast.digests() == digests
            names.append(group._name)
            broadcast._grouped = []  # as if another server had come back
        with pytest.raises(ServerError, match="does not exist"):
            loop.run(client._http.post("/destroy_weights_update_group", {"group_name": names[0]}))
        assert broadcast.generate(requests, lockstep=True) == expected
        synced.load(StateTensors(load_file(tiny_model / "model.safetensors")), "first")
        assert synced.generate(requests, lockstep=True) == before
        loop.run(client.close())


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, and the bytes that they write into buckets."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()
        self.written = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.names[name] += 1
        if name == "copy_":
            self.written += arguments[0].nbytes
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("count", [2, 8])
def test_weights_on_a_device_are_cast_once_and_copied_once_on_it(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device meta, where anything that left it or waited for it would raise."""
    monkeypatch.setattr(tensor_sync, "_handle", lambda flat, parts: None)
    masters = StateTensors({f"w{number}": torch.empty(100, 7, device="meta") for number in range(count)})
    weights, memory = CastTensors(masters, torch.bfloat16), SharedMemory(torch.device("meta"))
    with Operations() as seen:
        filled = [bucket.payloads([0]) for bucket in buckets(weights, memory, most=3000)]
    assert len(filled) == count // 2
    assert (seen.names["_to_copy"], seen.names["copy_"]) == (count, count)
    assert seen.written == total_bytes(weights)
    assert set(seen.names) <= {"_to_copy", "copy_", "empty", "slice", "view", "detach", "alias"}


@pytest.mark.parametrize(
    ("gpu", "given", "expected"),
    [
        (True, {}, "cuda"),
        (True, {"weight_sync": "folder"}, None),
        (True, {"own_gpus": True}, None),
        (True, {"replicas": 2}, None),
        (True, {"tensor_parallel": 2}, None),
        (True, {"release_memory": True}, "cuda"),
        (True, {"release_memory": True, "weight_sync": "tensors"}, "cuda"),
        (False, {}, None),
        (False, {"weight_sync": "tensors"}, "cpu"),
    ],
)
def test_tensors_are_shared_where_the_server_has_the_gpu_of_the_policy_or_the_user_asks(
    gpu: bool, given: dict[str, Any], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(connect, "obstacle_to_sharing", lambda device: None)
    device = device_of_sync(sglang.Config.model_validate(given), StateTensors(STATE))
    assert (None if device is None else device.type) == expected


@pytest.mark.parametrize(
    ("given", "ranks", "shared"),
    [
        ({"replicas": 4}, 4, True),
        ({"replicas": 2, "tensor_parallel": 2, "weight_sync": "tensors"}, 5, True),
        ({"replicas": 2, "tensor_parallel": 2}, 3, False),
        ({"replicas": 4, "weight_sync": "folder"}, 4, False),
        ({"replicas": 4, "own_gpus": True}, 4, False),
        ({"nodes": 1}, 4, False),
        ({"servers": ["http://127.0.0.1:1"]}, 4, False),
    ],
)
def test_each_gpu_of_a_server_needs_a_rank_that_allocates_for_it(
    given: dict[str, Any], ranks: int, shared: bool
) -> None:
    assert may_share_memory(sglang.Config.model_validate(given), ranks) is shared


class SharedStorage:
    """Memory of a GPU as torch shares it, or refuses to."""

    def __init__(self, refusal: str | None) -> None:
        self._refusal = refusal

    def untyped_storage(self) -> "SharedStorage":
        return self

    def _share_cuda_(self) -> tuple[object, ...]:
        if self._refusal is not None:
            raise RuntimeError(self._refusal)
        return (0, b"memory", 1, 0, b"counter", 64, b"event", True)


def _share_on_a_gpu(refusal: str | None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Have a made-up GPU share memory or refuse to; the counters that are given back."""
    released: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: SharedStorage(refusal))
    monkeypatch.setattr(
        torch.UntypedStorage, "_release_ipc_counter_cuda", lambda *counter: released.append(counter), raising=False
    )
    return released


def test_a_gpu_whose_memory_cannot_be_shared_leaves_the_folder_and_is_named_to_who_asks_for_tensors(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _share_on_a_gpu("cudaMallocAsync does not yet support shareIpcHandle.\nCalled from ...", monkeypatch)
    assert device_of_sync(sglang.Config(), StateTensors(STATE)) is None
    line = " ".join(capfd.readouterr().err.split())
    assert "as files, and not by CUDA IPC" in line
    assert "(cudaMallocAsync does not yet support shareIpcHandle.)" in line
    tensors = sglang.Config(weight_sync="tensors")
    with pytest.raises(UserError, match=r"weight_sync is tensors, but torch cannot share memory of this GPU"):
        device_of_sync(tensors, None)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8,expandable_segments:True")
    assert device_of_sync(sglang.Config(), StateTensors(STATE)) is None
    with pytest.raises(UserError, match="expandable segments"):
        device_of_sync(tensors, None)


def test_memory_of_a_gpu_is_tried_only_where_weights_will_travel_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = _share_on_a_gpu(None, monkeypatch)
    assert device_of_sync(sglang.Config(), None) is None  # the server keeps its weights
    assert released == []
    assert device_of_sync(sglang.Config(), StateTensors(STATE)) == torch.device("cuda", 0)
    assert released == [(b"counter", 64)]


@pytest.mark.parametrize("elsewhere", [{"servers": ["http://127.0.0.1:1"]}, {"own_gpus": True}, {"nodes": 1}])
def test_tensors_for_servers_that_cannot_open_them_are_refused(elsewhere: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="weight_sync is tensors"):
        sglang.Config.model_validate({"weight_sync": "tensors"} | elsewhere)


def test_shared_memory_of_a_sync_is_gone_once_both_sides_have_closed_it() -> None:
    common = pytest.importorskip("sglang.srt.utils.common")

    def shared() -> set[str]:
        return {path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")}

    before = shared()
    for bucket in buckets(StateTensors(STATE), SharedMemory(CPU), most=1):
        ((handle,),) = bucket.payloads([0])
        opened_there = common.MultiprocessingSerializer.deserialize(b64decode(handle))
        assert len(shared() - before) == 1
        del opened_there
    assert shared() == before
