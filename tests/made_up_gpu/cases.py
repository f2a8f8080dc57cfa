"""Policy updates on the made-up device: `python cases.py GUARD` prints their counts as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.made_up_gpu import device

CONFIG = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
SEQUENCES, LENGTH = 4, 64
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "packed, four layers": {"layers": 4},
    "packed, micro-batches of one": {"micro_batch": 1},
    "packed float16": {"dtype": "float16"},
    "packed float32": {"dtype": "float32"},
    "padded": {"layout": "padded"},
    "padded float16": {"layout": "padded", "dtype": "float16"},
    "padded float32": {"layout": "padded", "dtype": "float32"},
    "lora": {"rank": 8},
    "recomputed": {"recomputed": True},
    "head in chunks": {"chunk": 32},
}


def counts(
    *,
    layers: int = 2,
    layout: Any = "packed",
    dtype: str = "bfloat16",
    micro_batch: int = SEQUENCES,
    rank: int = 0,
    recomputed: bool = False,
    chunk: int | None = None,
) -> dict[str, Any]:
    """Return the counts of the second update, which has AdamW's states."""
    import torch

    from dagrpo.checkpoints.tensors import NAMED_DTYPES
    from dagrpo.distributed import World
    from dagrpo.params.algorithm import Algorithm
    from dagrpo.params.training import Training
    from dagrpo.trainer.budget import Budget
    from dagrpo.trainer.optimizer import policy_optimizer
    from dagrpo.trainer.policy import Policy
    from dagrpo.trainer.update import PolicyUpdate

    cuda, counted = torch.device("cuda", 0), device.counting()
    model = _model(layers, rank, cuda, counted.fake)
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
    with counted:
        policy = Policy(model, dtype=NAMED_DTYPES[dtype])
        if recomputed:
            policy.checkpoint_activations()
        update = PolicyUpdate(
            policy=policy,
            reference=None,
            optimizer=policy_optimizer(policy, training),
            algorithm=Algorithm(),
            training=training,
            budget=Budget(sequences=micro_batch, head_chunk_tokens=chunk, layout=layout),
            temperature=1.0,
            max_new_tokens=LENGTH,
            pad_token_id=0,
            world=World(rank=0, size=1, device=cuda),
        )
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
    }


def _model(layers: int, rank: int, cuda: Any, fake: Any) -> Any:
    """A Qwen2 whose weights and buffers are on the made-up device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from dagrpo.params.lora import Lora
    from dagrpo.trainer.adapter import add_adapter

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


def _rollouts() -> Any:
    """Sequences of four lengths, a quarter of each its prompt."""
    import torch

    from dagrpo.trainer.packing import RolloutBatch, TokenSequences

    drawn = torch.Generator().manual_seed(0)
    lengths = [LENGTH * (1 + row) // SEQUENCES for row in range(SEQUENCES)]
    ids = [torch.randint(CONFIG["vocab_size"], (length,), generator=drawn).tolist() for length in lengths]
    trained = [[4 * place >= length for place in range(length)] for length in lengths]
    number = sum(map(sum, trained))
    return RolloutBatch(
        sequences=TokenSequences.of(ids, trained),
        trajectories=torch.arange(SEQUENCES),
        rollout_logprobs=torch.full((number,), -7.0),
        positive=torch.ones(SEQUENCES, dtype=torch.bool),
        advantages=torch.randn(number, generator=drawn),
    )


if __name__ == "__main__":
    device.load_guard(Path(sys.argv[1]))
    device.pretend()
    print(json.dumps({name: counts(**case) for name, case in CASES.items()}))
