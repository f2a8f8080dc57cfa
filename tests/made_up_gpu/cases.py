"""Policy updates on the made-up device: `python cases.py GUARD` prints their counts as JSON."""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before torch is imported
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.made_up_gpu.device import CASES, load_guard, pretend

    load_guard(Path(sys.argv[1]))
    pretend()

import torch
import torch.distributed as dist
from tests.made_up_gpu.counting import Counting
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.fsdp import _shard_policy, checkpoint_activations
from dagrpo.trainer.model.lora import add_adapter
from dagrpo.trainer.model.optimizer import make_optimizer
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.state import states, tensors
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import World

CONFIG: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
SEQUENCES, LENGTH = 4, 64


def counts(
    *,
    layers: int = 2,
    layout: Any = "packed",
    dtype: str = "bfloat16",
    micro_batch: int = SEQUENCES,
    rank: int = 0,
    recomputed: bool = False,
    chunk: int | None = None,
    ranks: int = 1,
    reduction: Any = "each_mini_batch",
) -> dict[str, Any]:
    """Return the counts of the second update, which has AdamW's states."""
    counted, world = Counting(), World(rank=0, size=ranks, device=torch.device("cuda", 0))
    model = _model(layers, rank, world.device, counted.fake)
    with counted, _process_group(world):
        policy = Policy(model, dtype=NAMED_DTYPES[dtype])
        if recomputed:
            checkpoint_activations(policy.model)
        if ranks > 1:
            _shard_policy(policy, init_device_mesh("cuda", (ranks,)), world)
        budget = Budget(sequences=micro_batch, head_chunk_tokens=chunk, layout=layout, reduce_gradients=reduction)
        update, _ = _update(policy, world, budget, dtype)
        for step in range(2):
            counted.reset()
            stats = update.run(step, _rollouts())
    return {
        "skipped": stats.skipped,
        "optimizer": counted.kernels["_fused_adamw_"],
        "kernels": sum(counted.kernels.values()),
        "waits": dict(counted.waits),
        "products": dict(counted.products),
        "attention": dict(counted.attention),
        "collectives": dict(counted.collectives),
        "whole": dict(counted.whole),
    }


def state_counts() -> dict[str, Any]:
    """Return the counts of a state that is saved after an update, and loaded into another policy, which is updated then."""
    counted, world = Counting(), World(rank=0, size=1, device=torch.device("cuda", 0))
    models = [_model(2, 0, world.device, counted.fake) for _ in range(2)]
    budget = Budget(sequences=SEQUENCES, layout="packed")
    with counted, tempfile.TemporaryDirectory() as folder:
        update, optimizer = _update(policy := Policy(models[0], dtype=torch.bfloat16), world, budget, "bfloat16")
        update.run(0, _rollouts())
        counted.reset()
        tensors.save(Path(folder), 1, policy, optimizer, world)
        saved = dict(counted.waits)
        update, resumed = _update(policy := Policy(models[1], dtype=torch.bfloat16), world, budget, "bfloat16")
        counted.reset()
        tensors.load(states.at(Path(folder), 1), policy, resumed)
        loaded = {"waits": dict(counted.waits), "copies": counted.kernels["copy_"]}
        places = {str(value.device) for states in resumed.state.values() for value in states.values()}
        stats = update.run(1, _rollouts())
    count = len(list(policy.parameters())) + sum(map(len, optimizer.state.values()))
    return {"tensors": count, "saved": saved, "loaded": loaded, "places": sorted(places), "skipped": stats.skipped}


def _update(policy: Any, world: Any, budget: Any, dtype: str) -> tuple[Any, Any]:
    """The update of a policy, and its optimizer."""
    training = Training.model_validate(
        {
            "prompts_per_step": SEQUENCES,
            "samples_per_prompt": 1,
            "learning_rate": 1e-6,
            "digests_every": 0,
            "gates": {"truncated": None},
            "dtype": dtype,
        }
    )
    optimizer = make_optimizer(policy, training)
    update = PolicyUpdate(
        policy=policy,
        reference=None,
        optimizer=optimizer,
        algorithm=Algorithm(),
        training=training,
        budget=budget,
        temperature=1.0,
        max_new_tokens=LENGTH,
        pad_token_id=0,
        world=world,
    )
    return update, optimizer


@contextmanager
def _process_group(world: Any) -> Iterator[None]:
    """Let this process be rank 0 of a group in which nobody else answers; of one process: no group."""
    if world.size == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world.size)
    yield
    dist.destroy_process_group()


def _model(layers: int, rank: int, cuda: Any, fake: Any) -> Any:
    """A Qwen2 whose weights and buffers are on the made-up device."""
    config = AutoConfig.for_model("qwen2", **CONFIG, num_hidden_layers=layers)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if rank:
        add_adapter(model, Lora(rank=rank, alpha=2 * rank))
    with fake:
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    new = torch.empty(weight.shape, dtype=weight.dtype, device=cuda)
                    module._parameters[name] = torch.nn.Parameter(new, requires_grad=weight.requires_grad)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=cuda)
        model.tie_weights()
    return model


def _rollouts() -> Batch:
    """Sequences of four lengths, a quarter of each its prompt."""
    drawn = torch.Generator().manual_seed(0)
    lengths = [LENGTH * (1 + row) // SEQUENCES for row in range(SEQUENCES)]
    ids = [torch.randint(CONFIG["vocab_size"], (length,), generator=drawn).tolist() for length in lengths]
    trained = [[4 * place >= length for place in range(length)] for length in lengths]
    number = sum(map(sum, trained))
    return Batch(
        sequences=TokenSequences.of(ids, trained),
        trajectories=torch.arange(SEQUENCES),
        rollout_logprobs=torch.full((number,), -7.0),
        positive=torch.ones(SEQUENCES, dtype=torch.bool),
        advantages=torch.randn(number, generator=drawn),
    )


if __name__ == "__main__":
    print(json.dumps({name: counts(**case) for name, case in CASES.items()} | {"state": state_counts()}))
