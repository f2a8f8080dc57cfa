"""A server that leaves its GPU for an update: what it is told, and in which order."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.engine.conftest import Serve
from tests.engine.pools import pool_over
from tests.engine.scripted import Echo, ScriptedServer

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.core.types import SamplingRequest
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.errors import ServerError
from dagrpo.engine.http import Endpoint
from dagrpo.engine.pool import ServerPool

REQUEST = SamplingRequest(input_ids=(7, 8), seed=1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=1)
WEIGHTS = StateTensors({"model.norm.weight": torch.ones(4)})


class WithMemory(Echo):
    """Refuses what would end a real server: to take back memory that it has, and to be asked without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()

    def __call__(self, path: str, body: dict[str, object]) -> tuple[int, object]:
        tags = {str(tag) for tag in body.get("tags", ())}  # type: ignore[attr-defined]
        if path == "/release_memory_occupation":
            if tags & self.away:
                return 500, {"error": "gone already"}
            self.away |= tags
        elif path == "/resume_memory_occupation":
            if not tags <= self.away:
                return 500, {"error": "KeyError"}
            self.away -= tags
        elif path == "/update_weights_from_disk" and "weights" in self.away:
            return 500, {"error": "no memory for weights"}
        elif path == "/generate" and self.away:
            return 500, {"error": "illegal memory access"}
        return super().__call__(path, body)


@contextmanager
def pool_at(server: ScriptedServer, folder: Path) -> Iterator[ServerPool]:
    (folder / "like").mkdir()
    with pool_over([Endpoint(address=server.address)], folder / "like", folder / "weights", 5, leaves=True) as pool:
        yield pool


def test_it_leaves_when_it_is_idle_and_comes_back_in_two_parts_round_the_new_weights(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve(WithMemory())
    with pool_at(server, tmp_path) as pool:
        pool.load(WEIGHTS, "step_0")
        assert not any("occupation" in path for path in server.paths), "it would end itself"
        server.asked.clear()
        pool.generate([REQUEST], lockstep=False)
        for step in (1, 2):
            pool.release_memory()
            pool.load(WEIGHTS, f"step_{step}")
            assert pool.generate([REQUEST], lockstep=True)[0].weight_version == f"step_{step}"
    tags = [body.get("tags") for path, body in server.asked if "occupation" in path]
    wait = "/flush_cache?timeout=10.0"
    weight_sync = ["/resume_memory_occupation", "/update_weights_from_disk", "/resume_memory_occupation", wait]
    assert server.paths == ["/generate", *[wait, "/release_memory_occupation", *weight_sync, "/generate"] * 2]
    assert tags == [["kv_cache", "weights"], ["weights"], ["kv_cache"]] * 2


def test_what_a_gpu_cannot_hold_when_the_server_comes_back_is_an_error_with_its_words(
    serve: Serve, tmp_path: Path
) -> None:

    def full(path: str, body: dict[str, object]) -> tuple[int, object]:
        return (400, {"error": {"message": "out of memory"}}) if "resume" in path else (200, {"success": True})

    server = serve(full)
    with pool_at(server, tmp_path) as pool:
        pool.release_memory()
        with pytest.raises(ServerError, match=r"refused /resume_memory_occupation \(400\): .*out of memory"):
            pool.load(WEIGHTS, "step_1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_has_nothing_to_give_back(tiny_model: Path, tmp_path: Path) -> None:
    params = sglang.Config(release_memory=True)
    with (
        pytest.raises(UserError, match=r"release_memory is true, but this machine has no GPU"),
        open_engine(tiny_model, params, tmp_path / "log", dtype="float32", deterministic=True),
    ):
        pass
