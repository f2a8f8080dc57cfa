"""The arguments that are written for Megatron-LM, as its own parser takes them: names, types and choices.

Read from megatron/training/arguments.py of megatron-core 0.19.2 (the wheel has that module, for Python 3.12 and later;
that of 0.16.1 has not). Arguments of the parser that are never written are not here.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

FLAGS = """
    accumulate-allreduce-grads-in-fp32 add-qkv-bias attention-softmax-in-fp32 bf16 calculate-per-token-loss
    data-parallel-random-init disable-bias-linear finetune group-query-attention log-num-zeros-in-grad log-params-norm
    log-progress log-throughput log-timers-to-tensorboard mock-data moe-router-pre-softmax
    no-create-attention-mask-in-dataloader no-masked-softmax-fusion no-rope-fusion perform-rl-step qk-layernorm
    recompute-activations rl-offload-optimizer-during-inference rl-use-sequence-packing rotary-interleaved
    sequence-parallel swiglu te-rng-tracker untie-embeddings-and-output-weights use-distributed-optimizer
    use-mcore-models use-rope-scaling
"""
WHOLE_NUMBERS = """
    distributed-timeout-minutes empty-unused-memory-level eval-interval expert-model-parallel-size ffn-hidden-size
    global-batch-size grpo-group-size grpo-iterations grpo-prompts-per-step hidden-size
    inference-dynamic-batching-num-cuda-graphs inference-dynamic-batching-unified-memory-level inference-max-requests
    inference-max-seq-length kv-channels log-interval lr-warmup-samples make-vocab-size-divisible-by
    max-position-embeddings micro-batch-size moe-ffn-hidden-size moe-layer-freq moe-router-topk num-attention-heads
    num-experts num-layers num-query-groups pipeline-model-parallel-size rl-prompts-per-eval rotary-base
    rotary-seq-len-interpolation-factor save-interval seed seq-length tensor-model-parallel-size
    tensorboard-log-interval timing-log-level train-samples vocab-size
"""
NUMBERS = """
    adam-beta1 adam-beta2 adam-eps attention-dropout clip-grad grpo-clamp-eps-lower grpo-clamp-eps-upper grpo-kl-beta
    hidden-dropout inference-dynamic-batching-buffer-size-gb lr min-lr moe-aux-loss-coeff norm-epsilon
    rope-scaling-factor rotary-percent weight-decay
"""
TEXTS = """
    langrl-env-config load pretrained-checkpoint recompute-modules save tensorboard-dir tokenizer-model window-size
"""
CHOICES = {
    "attention-backend": ["flash", "fused", "unfused", "local", "auto"],
    "ckpt-format": ["torch", "torch_dist", "torch_dcp", "fsdp_dtensor"],
    "cuda-graph-impl": ["none", "local", "transformer_engine", "full_iteration"],
    "moe-router-load-balancing-type": ["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"],
    "moe-token-dispatcher-type": ["allgather", "alltoall", "flex"],
    "normalization": ["LayerNorm", "RMSNorm"],
    "position-embedding-type": ["learned_absolute", "rope", "yarn", "mrope", "relative", "none"],
    "recompute-granularity": ["full", "selective"],
    "rl-sequence-packing-algo": ["fifo", "round-robin"],
    "timing-log-option": ["max", "minmax", "all"],
    "tokenizer-type": ["HuggingFaceTokenizer", "NullTokenizer"],
    "transformer-impl": ["local", "transformer_engine", "inference_optimized"],
}


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """Values by name. SystemExit, as Megatron-LM itself would: an argument that it does not have, or of another type."""
    parser = ArgumentParser(allow_abbrev=False)
    for name in FLAGS.split():
        parser.add_argument(f"--{name}", action="store_true")
    for names, kind in ((WHOLE_NUMBERS, int), (NUMBERS, float), (TEXTS, str)):
        for name in names.split():
            parser.add_argument(f"--{name}", type=kind)
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices)
    values = vars(parser.parse_args(arguments))
    return {name: value for name, value in values.items() if value is not None and value is not False}
