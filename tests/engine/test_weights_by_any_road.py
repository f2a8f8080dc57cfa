"""By whichever of its roads SGLang gets new weights, it computes with them: its packed copies of the old ones are gone.

The server has packed its weights before each weight sync, since it has sampled.
"""

import base64
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.batches import batch, trainer_logprobs
from tests.everyday import everyday

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.server import SGLangServer

Post = Callable[[str, dict[str, Any]], None]
Weights = dict[str, torch.Tensor]
SENDER = """
import sys
import torch
from safetensors.torch import load_file
from sglang.srt.utils import init_custom_process_group
address, path = sys.argv[1:]
group = init_custom_process_group(
    backend="gloo", init_method=address, world_size=2, rank=0, group_name="weight_update_group"
)
for tensor in load_file(path).values():
    torch.distributed.broadcast(tensor, src=0, group=group)
"""


def from_disk(post: Post, folder: Path, weights: Weights) -> None:
    post("/update_weights_from_disk", {"model_path": str(folder), "flush_cache": True})


def from_tensors(post: Post, folder: Path, weights: Weights) -> None:
    serialized = base64.b64encode(pickle.dumps([*weights.items()])).decode()
    post("/begin_weight_update", {})
    post("/update_weights_from_tensor", {"serialized_named_tensors": [serialized]})
    post("/end_weight_update", {})


def from_another_process(post: Post, folder: Path, weights: Weights) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", SENDER, f"tcp://127.0.0.1:{port}", str(folder / "model.safetensors")]
    sender = subprocess.Popen(command, env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1"})
    try:
        group = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": 2,
            "backend": "gloo",
        }
        post("/init_weights_update_group", group)
        post("/begin_weight_update", {})
        shapes = [[*tensor.shape] for tensor in weights.values()]
        body = {"names": [*weights], "dtypes": ["float32"] * len(weights), "shapes": shapes}
        post("/update_weights_from_distributed", body)
        post("/end_weight_update", {})
        assert sender.wait(60) == 0
        post("/destroy_weights_update_group", {})
    finally:
        sender.kill()
        sender.wait()


def after_leaving_memory(post: Post, folder: Path, weights: Weights) -> None:
    post("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    post("/resume_memory_occupation", {"tags": ["weights"]})
    post("/update_weights_from_disk", {"model_path": str(folder), "flush_cache": False})
    post("/resume_memory_occupation", {"tags": ["kv_cache"]})


ROADS = [from_disk, from_tensors, from_another_process, after_leaving_memory]


@pytest.mark.server
@pytest.mark.parametrize("road", everyday([from_disk], ROADS))
def test_logprobs_are_those_of_the_weights_that_came_last(
    road: Callable[[Post, Path, Weights], None],
    server: SGLangServer,
    pool: ServerPool,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    requests = batch(prompts=8, samples=2)
    before = pool.generate(requests, lockstep=True)
    weights = {name: 1.1 * tensor for name, tensor in load_file(tiny_model / "model.safetensors").items()}
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})

    def post(path: str, body: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {server.endpoint.api_key}"}
        answer = httpx.post(server.address + path, json=body, headers=headers, timeout=120, trust_env=False)
        assert answer.status_code == 200, answer.text

    road(post, tmp_path, weights)
    after = pool.generate(requests, lockstep=True)
    sampled = torch.tensor([value for completion in after for value in completion.logprobs])
    old, new = (torch.tensor(trainer_logprobs(model, requests, after)) for model in (tiny_model, tmp_path))
    torch.testing.assert_close(sampled, new, atol=1e-4, rtol=0)
    assert (sampled - old).abs().max() > 0.01, "the weights differ so much that old ones would be seen"
    pool.load(HuggingFaceTensors(tiny_model), "first")
    assert pool.generate(requests, lockstep=True) == before
