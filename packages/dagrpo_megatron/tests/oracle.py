"""Runs megatron-core on the CPU: loads `torch_dist` checkpoints in several parallel layouts, computes logits, saves.

A script of its own, run by the Python of an environment with megatron-core (requirements/megatron-test.lock); it does
not import dagrpo. Usage: oracle.py CASES.json, a list of objects with the keys of Case.
"""

import itertools
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

PROCESSES = 4
# Of GLM-4-0414: the argument of the forks of Megatron-LM, the part whose output is normalised, the norm's name.
OUTPUT_NORMS = (
    ("--post-self-attn-layernorm", "self_attention", "post_self_attn_layernorm"),
    ("--post-mlp-layernorm", "mlp", "post_mlp_layernorm"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model in one layout. `arguments` are lines of megatron_arguments.txt."""

    arguments: list[str]
    load: str
    tokens: list[int]
    logits: str
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    vocabulary: int | None = None
    save: str | None = None

    @property
    def layout(self) -> tuple[int, int, int]:
        return self.tensor, self.pipeline, self.expert


def patch_for_cpu() -> None:
    """Megatron asks CUDA for its device and its random state even where it could do without."""
    ones = torch.ones
    torch.ones = lambda *sizes, device=None, **options: ones(*sizes, **options)
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *a, **k: None
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *a, **k: self  # type: ignore[method-assign, assignment]
    torch.cuda.get_rng_state = lambda *a, **k: torch.get_rng_state()
    torch.cuda.manual_seed = lambda seed: torch.manual_seed(seed)  # type: ignore[assignment]
    from megatron.core import dist_checkpointing  # noqa: F401
    from megatron.core.models.gpt import gpt_layer_specs  # noqa: F401
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    random._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    moe_utils.te_general_gemm = None


def parsed(arguments: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(" ") for line in arguments)}


def transformer_config(given: dict[str, str], case: Case) -> Any:
    from megatron.core.transformer import TransformerConfig

    heads = int(given["--num-attention-heads"])
    experts: dict[str, Any] = {}
    if "--num-experts" in given:
        experts = {
            "num_moe_experts": int(given["--num-experts"]),
            "moe_router_topk": int(given["--moe-router-topk"]),
            "moe_ffn_hidden_size": int(given["--moe-ffn-hidden-size"]),
            "moe_router_pre_softmax": "--moe-router-pre-softmax" in given,
            "moe_token_dispatcher_type": "allgather",
            "moe_router_load_balancing_type": "none",
            "moe_grouped_gemm": False,
        }
    window = given.get("--window-size")
    return TransformerConfig(
        num_layers=int(given["--num-layers"]),
        hidden_size=int(given["--hidden-size"]),
        ffn_hidden_size=int(given["--ffn-hidden-size"]),
        num_attention_heads=heads,
        kv_channels=int(given["--kv-channels"]),
        num_query_groups=int(given.get("--num-query-groups", heads)),
        normalization=given["--normalization"],
        layernorm_epsilon=float(given["--norm-epsilon"]),
        gated_linear_unit="--swiglu" in given,
        activation_func=torch.nn.functional.silu,
        add_bias_linear="--disable-bias-linear" not in given,
        add_qkv_bias="--add-qkv-bias" in given,
        qk_layernorm="--qk-layernorm" in given,
        rotary_interleaved="--rotary-interleaved" in given,
        window_size=tuple(int(part) for part in window.split(",")) if window else None,
        attention_dropout=float(given["--attention-dropout"]),
        hidden_dropout=float(given["--hidden-dropout"]),
        tensor_model_parallel_size=case.tensor,
        pipeline_model_parallel_size=case.pipeline,
        expert_model_parallel_size=case.expert,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        persist_layer_norm=False,
        **experts,
    )


def build(case: Case) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    given = parsed(case.arguments)
    config = transformer_config(given, case)
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
    )
    if config.num_moe_experts:  # the local layer's own key for this norm is not that of Transformer Engine's layer
        spec.submodules.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.", None)
    factor = given.get("--rotary-seq-len-interpolation-factor")
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=case.vocabulary or int(given["--vocab-size"]),
        max_sequence_length=int(given["--max-position-embeddings"]),
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=False,
        share_embeddings_and_output_weights="--untie-embeddings-and-output-weights" not in given,
        position_embedding_type="rope",
        rotary_base=int(given["--rotary-base"]),
        rotary_percent=float(given["--rotary-percent"]),
        rope_scaling="--use-rope-scaling" in given,
        rope_scaling_factor=float(given.get("--rope-scaling-factor", 8.0)),
        seq_len_interpolation_factor=float(factor) if factor else None,
    )
    for option, part, norm in OUTPUT_NORMS:
        if option in given:
            add_output_norm(model, part, norm)
    return model.eval()


def add_output_norm(model: Any, part: str, name: str) -> None:
    """megatron-core has no norm of what attention or MLP adds to the residual; the layers of its forks have.

    The norm is megatron-core's own, a child of the layer under the name that those forks give it.
    """
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    for layer in model.decoder.layers:
        norm = WrappedTorchNorm(model.config, model.config.hidden_size, model.config.layernorm_epsilon)
        layer.add_module(name, norm)
        layer.get_submodule(part).register_forward_hook(
            lambda module, inputs, output, norm=norm: (norm(output[0]), output[1])
        )


def forward(model: Any, tokens: list[int], hidden_size: int) -> torch.Tensor | None:
    """The logits on the last stage of the pipeline, None on the others."""
    from megatron.core import parallel_state

    ids = torch.tensor([tokens])
    count = len(tokens)
    masked = torch.ones(1, 1, count, count).triu(1).bool()
    if not parallel_state.is_pipeline_first_stage():
        received = torch.empty(count, 1, hidden_size)
        dist.recv(received, parallel_state.get_pipeline_model_parallel_prev_rank())
        model.set_input_tensor(received)
    output = model(ids, torch.arange(count)[None], masked)
    if not parallel_state.is_pipeline_last_stage():
        dist.send(output.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
        return None
    return torch.as_tensor(output[0])


@torch.no_grad()
def run(case: Case) -> None:
    from megatron.core import dist_checkpointing, parallel_state

    model = build(case)
    # With the default strictness. The content of common.pt comes back beside the model.
    loaded = dist_checkpointing.load({"model": model.sharded_state_dict()}, case.load)
    model.load_state_dict(loaded["model"])
    logits = forward(model, case.tokens, model.config.hidden_size)
    if logits is not None and parallel_state.get_tensor_model_parallel_rank() == 0:
        torch.save(logits, f"{case.logits}.{dist.get_rank()}")
    if case.save:
        if dist.get_rank() == 0:
            Path(case.save).mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save({"model": model.sharded_state_dict(), "iteration": 7}, case.save)
    dist.barrier()


def lay_out(layout: tuple[int, int, int]) -> None:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    tensor, pipeline, expert = layout
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        expert_model_parallel_size=expert,
    )
    model_parallel_cuda_manual_seed(1)


def work(rank: int, cases: list[Case], store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    # Every layout makes some twenty process groups, whose threads gloo keeps: one layout for all its cases.
    by_layout = sorted(cases, key=lambda case: case.layout)
    for layout, of_layout in itertools.groupby(by_layout, key=lambda case: case.layout):
        lay_out(layout)
        for case in of_layout:
            run(case)
    dist.destroy_process_group()


def main() -> None:
    path = Path(sys.argv[1])
    cases = [Case(**case) for case in json.loads(path.read_text())]
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    patch_for_cpu()  # megatron-core is imported once, before the fork: it takes ten seconds
    arguments = (cases, str(path.with_suffix(".store")))
    start_processes(work, arguments, nprocs=PROCESSES, start_method="fork")  # type: ignore[no-untyped-call]


if __name__ == "__main__":  # saving starts a process, which imports this file
    main()
