"""Stand-in for Megatron-LM's train_rl.py: real command line, agent, rewards and files; weights that grow by 1 in each update.

Each rank writes its half of every tensor. STAND_IN_ENDS_AFTER: each rank kills itself after that update. STAND_IN_HANGS_AFTER: it
waits, unless it has resumed.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.inference.utils import add_inference_args
from megatron.rl.agent.registry import get_agent_class
from megatron.rl.inference import megatron as inference
from megatron.training import training
from megatron.training.arguments import parse_args, validate_args
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoTokenizer

LATEST = "latest_checkpointed_iteration.txt"
Weights = dict[str, torch.Tensor]


def main() -> None:
    print("This is a stand-in for Megatron-LM: it trains nothing.", flush=True)
    arguments = parse_args(extra_args_provider=add_inference_args)
    validate_args(arguments, {})
    dist.init_process_group("gloo")
    listening = _engines() if os.environ["GROUP_WORLD_SIZE"] != "1" else None
    tracker = Path(arguments.save) / LATEST
    first = int(tracker.read_text()) if tracker.exists() else 0
    weights = _load(
        Path(arguments.load) / f"iter_{first:07d}" if first else Path(arguments.pretrained_checkpoint) / "release"
    )
    updates = arguments.grpo_prompts_per_step * arguments.grpo_group_size // arguments.global_batch_size
    sample = _sampler(arguments) if arguments.rank == 0 else None
    for iteration in range(first + 1, arguments.train_iters + 1):
        if sample and (iteration - 1) % updates == 0:
            asyncio.run(sample())
        weights = {name: value + 1 for name, value in weights.items()}
        loss = {"lm loss": torch.tensor(0.5), "rl/kl_term": torch.tensor(float(iteration))}
        training.training_log(loss, {}, arguments.lr, iteration, grad_norm=float(iteration))
        if iteration % arguments.save_interval == 0 or iteration == arguments.train_iters:
            _save(Path(arguments.save), iteration, weights)
        if os.environ.get("STAND_IN_ENDS_AFTER") == str(iteration):
            os.kill(os.getpid(), signal.SIGKILL)
        while os.environ.get("STAND_IN_HANGS_AFTER") == str(iteration) and not first:
            time.sleep(1)
            dist.barrier()  # which fails where another node is gone
    del listening
    dist.destroy_process_group()


def _engines() -> Any:
    """Connect all ranks to the engine of the first, as inference on several nodes does."""
    engine = inference.DynamicInferenceEngine()
    listening = engine.start_listening_to_data_parallel_coordinator(0, True) if dist.get_rank() == 0 else None
    place = [listening.getsockname() if listening else None]
    dist.broadcast_object_list(place)
    socket.create_connection(tuple(place[0] or ())).close()
    dist.barrier()
    return listening


def _sampler(arguments: Namespace) -> Any:
    """Return a function that samples the groups of a step, as the rollout pipeline does."""
    (entry,) = json.loads(Path(arguments.langrl_env_config).read_text())
    agent = get_agent_class(entry["agent_type"])(**entry["agent_args"])
    create = inference.AsyncOpenAI(AutoTokenizer.from_pretrained(arguments.tokenizer_model)).chat.completions.create

    async def sample() -> None:
        for _ in range(arguments.grpo_prompts_per_step):
            messages, golden = await agent.get_prompt(validation=False)
            for _ in range(arguments.grpo_group_size):
                response = await create(messages=[message.model_dump() for message in messages])
                episode = SimpleNamespace(responses=[response], conversation=messages)
                rollout = await agent._rollout_from_episode(None, episode, golden)
                written = len(response.token_ids) - response.prompt_length
                assert response.finish_reason == "stop" or written == rollout.generation_cap

    return sample


def _load(folder: Path) -> Weights:
    reader = FileSystemReader(folder)
    tensors = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in reader.read_metadata().state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader)
    return tensors


def _save(folder: Path, iteration: int, weights: Weights) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    written = folder / f"iter_{iteration:07d}"
    halves = {name: distribute_tensor(value, mesh, [Shard(value.ndim - 1)]) for name, value in weights.items()}
    save(halves, storage_writer=FileSystemWriter(written))
    if dist.get_rank() == 0:
        (written / "metadata.json").write_text(
            json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1})
        )
        torch.save({"iteration": iteration}, written / "common.pt")
        (folder / LATEST).write_text(str(iteration))
        for earlier in set(folder.glob("iter_*")) - {written}:
            shutil.rmtree(earlier)
    dist.barrier()


if __name__ == "__main__":
    main()
