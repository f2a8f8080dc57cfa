"""Recipe as a script with the command line of Megatron-LM's train_rl.py.

It lies beside the checkpoint. The names and values of its arguments are those of Megatron-LM core_v0.19.2. The script reads only its
own folder and the variables that it names; arguments after its own name win over those inside.
"""

from dagrpo_megatron.arguments import megatron_arguments
from dagrpo_megatron.config import ModelConfig
from dagrpo_megatron.recipes import GPUS_PER_NODE, Recipe, require_trainable

FILE = "train_with_megatron.sh"
_SCRIPT = """\
#!/usr/bin/env bash
# GRPO with Megatron-LM (core_v0.19.2) by the recipe {name} of its examples/rl: {nodes}.
# Start it on every node. MEGATRON_LM is a checkout of Megatron-LM; training goes on where SAVE has a checkpoint.
set -euo pipefail

CHECKPOINT="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
MEGATRON_LM="${{MEGATRON_LM:-$PWD}}"
SAVE="${{SAVE:-$PWD/trained}}"
TOKENIZER="${{TOKENIZER:-{tokenizer}}}"
{variables}
MASTER_PORT="${{MASTER_PORT:-6000}}"
SEED="${{SEED:-1234}}"

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export NCCL_P2P_NET_CHUNKSIZE=2097152
export UB_TIMEOUT=720

ARGUMENTS=(
{arguments}
)

exec torchrun --nproc-per-node {gpus} --nnodes "$NNODES" --node-rank "$NODE_RANK" \\
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$MEGATRON_LM/train_rl.py" "${{ARGUMENTS[@]}}" "$@"
"""
_EVERY_RUN = (
    "--use-mcore-models",
    "--transformer-impl transformer_engine",
    "--attention-backend flash",
    "--attention-softmax-in-fp32",
    "--no-masked-softmax-fusion",
    "--no-create-attention-mask-in-dataloader",
    "--accumulate-allreduce-grads-in-fp32",
    "--bf16",
    "--te-rng-tracker",
    "--cuda-graph-impl local",
    "--data-parallel-random-init",
    "--distributed-timeout-minutes 60",
    "--use-distributed-optimizer",
    "--empty-unused-memory-level 2",
    "--calculate-per-token-loss",
    "--perform-rl-step",
    "--rl-offload-optimizer-during-inference",
    "--inference-dynamic-batching-num-cuda-graphs 1",
    "--inference-dynamic-batching-buffer-size-gb 20",
    "--inference-dynamic-batching-unified-memory-level 1",
    "--mock-data",
    "--train-samples 48828125",
    "--eval-interval 20",
    "--rl-prompts-per-eval 32",
    "--clip-grad 1.0",
    "--adam-beta1 0.9",
    "--adam-eps 1e-8",
    "--log-interval 10",
    "--log-progress",
    "--log-params-norm",
    "--log-num-zeros-in-grad",
    "--log-throughput",
    "--log-timers-to-tensorboard",
    "--timing-log-level 1",
    "--timing-log-option minmax",
    "--tensorboard-log-interval 1",
)
_FOLDERS = (
    '--pretrained-checkpoint "$CHECKPOINT"',
    '--load "$SAVE"',
    '--save "$SAVE"',
    '--tensorboard-dir "$SAVE/tensorboard"',
    "--tokenizer-type HuggingFaceTokenizer",
    '--tokenizer-model "$TOKENIZER"',
    '--langrl-env-config "$ENVIRONMENT"',
    '--seed "$SEED"',
)


def script(recipe: Recipe, config: ModelConfig) -> str:
    """Return the script for a model. Raises UserError if the recipe's layout cannot hold it, or Megatron-LM cannot train it."""
    require_trainable(recipe, config)
    # --pretrained-checkpoint implies --finetune for the first start; given always, it would start afresh at every restart.
    of_model = [argument for argument in megatron_arguments(config) if argument != "--finetune"]
    lines = [*of_model, *_FOLDERS, *_of_recipe(recipe), *_EVERY_RUN, *recipe.more]
    return _SCRIPT.format(
        name=recipe.name,
        nodes=f"{recipe.nodes} node{'s' if recipe.nodes > 1 else ''} of {GPUS_PER_NODE} GPUs",
        tokenizer=recipe.model.tokenizer if recipe.model.has_sizes_of(config) else "$CHECKPOINT",
        variables="\n".join([_environment(recipe), *_nodes(recipe)]),
        arguments="\n".join(f"  {line}" for line in lines),
        gpus=GPUS_PER_NODE,
    )


def _environment(recipe: Recipe) -> str:
    if recipe.environment is None:
        return 'ENVIRONMENT="${ENVIRONMENT:?is not set: name a file of examples/rl/environment_configs}"'
    return f'ENVIRONMENT="${{ENVIRONMENT:-$MEGATRON_LM/examples/rl/environment_configs/{recipe.environment}}}"'


def _nodes(recipe: Recipe) -> list[str]:
    """Return the lines that set nodes and master address: a single node has defaults, several need the user's values to find each other."""
    if recipe.nodes == 1:
        return ['NNODES="${NNODES:-1}"', 'NODE_RANK="${NODE_RANK:-0}"', 'MASTER_ADDR="${MASTER_ADDR:-localhost}"']
    return [
        f'NNODES="${{NNODES:-{recipe.nodes}}}"',
        'NODE_RANK="${NODE_RANK:?is not set: number the nodes from 0}"',
        'MASTER_ADDR="${MASTER_ADDR:?is not set: give the address of node 0}"',
    ]


def _of_recipe(recipe: Recipe) -> list[str]:
    return [
        f"--tensor-model-parallel-size {recipe.tensor}",
        *(["--sequence-parallel"] if recipe.tensor > 1 else []),
        "--pipeline-model-parallel-size 1",
        *([f"--expert-model-parallel-size {recipe.expert}"] if recipe.expert > 1 else []),
        f"--grpo-prompts-per-step {recipe.prompts}",
        f"--grpo-group-size {recipe.group_size}",
        "--grpo-iterations 1",
        f"--grpo-clamp-eps-lower {recipe.clamp_lower}",
        f"--grpo-clamp-eps-upper {recipe.clamp_upper}",
        f"--grpo-kl-beta {recipe.kl_beta}",
        f"--global-batch-size {recipe.batch}",
        f"--micro-batch-size {recipe.micro_batch}",
        f"--seq-length {recipe.length}",
        f"--inference-max-seq-length {recipe.length}",
        f"--inference-max-requests {recipe.requests}",
        f"--lr {recipe.learning_rate:g}",
        f"--min-lr {recipe.minimum_learning_rate:g}",
        f"--lr-warmup-samples {recipe.warmup_samples}",
        f"--weight-decay {recipe.weight_decay}",
        f"--adam-beta2 {recipe.adam_beta2}",
        f"--save-interval {recipe.save_interval}",
    ]
