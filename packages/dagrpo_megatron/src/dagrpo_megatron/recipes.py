"""GRPO recipes of Megatron-LM's examples/rl: GPUs, layout and figures, from recipes.yaml.

Arguments that the model itself dictates (sizes, rotary base, epsilon) are read from config.json instead. `script` writes a recipe
as the command line of train_rl.py, to lie beside the checkpoint: the names and values of its arguments are those of Megatron-LM
core_v0.19.2. It reads only its own folder and the variables that it names; arguments after its own name win over those inside.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from dagrpo.core.errors import UserError
from dagrpo_megatron.arguments import megatron_arguments
from dagrpo_megatron.config import ModelConfig

GPUS_PER_NODE = 8
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """Model of a recipe, identified by its architecture and sizes. `tokenizer` is a name on the hub."""

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    experts: int = 0
    tokenizer: str

    def has_sizes_of(self, config: ModelConfig) -> bool:
        """Return True for this model or one that was trained from it: the vocabulary may differ."""
        sizes = ("layers", "hidden", "ffn", "heads", "groups", "experts")
        same = all(getattr(self, size) == getattr(config.shape, size) for size in sizes)
        return same and self.architecture in config.family.architectures


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Training run. Batches count completions, `length` tokens; `requests` is how many are generated at once.

    `environment` is a file of examples/rl/environment_configs; None: the figures are for any, and the user names one.
    The defaults are the values that most recipes share. `tensor` and `expert` are parallel sizes; the pipeline has one stage.
    """

    name: str
    model: PublishedModel
    nodes: int
    tensor: int = 1
    expert: int = 1
    environment: str | None = None
    prompts: int = 64
    group_size: int = 16
    batch: int = 1024
    micro_batch: int = 1
    length: int
    requests: int = 64
    clamp_lower: float = 0.2
    clamp_upper: float = 0.2
    kl_beta: float = 0.0
    learning_rate: float = 1e-6
    minimum_learning_rate: float = 0.0
    warmup_samples: int = 0
    weight_decay: float = 0.0
    adam_beta2: float = 0.95
    save_interval: int = 16
    more: tuple[str, ...] = ()


def _read(path: Path) -> Iterator[Recipe]:
    for given in yaml.safe_load(path.read_text(encoding="utf-8"))["recipes"]:
        more = tuple(given.pop("more", ()))
        yield Recipe(model=PublishedModel(**given.pop("model")), more=more, **given)


RECIPES = tuple(_read(Path(__file__).with_name("recipes.yaml")))


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name. Raises UserError for an unknown name."""
    by_name = {recipe.name: recipe for recipe in RECIPES}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=3, cutoff=0.5) or list(by_name)
        raise UserError(f"There is no recipe {name!r}: choose {' or '.join(near)}.")
    return by_name[name]


def recipes_for(config: ModelConfig) -> list[Recipe]:
    """Return the recipes for a model of these sizes."""
    return [recipe for recipe in RECIPES if recipe.model.has_sizes_of(config)]


def recipe_of_itself(config: ModelConfig) -> Recipe | None:
    """Return the recipe that needs no choice: the first for these sizes, unless two published models have them."""
    fitting = recipes_for(config)
    return fitting[0] if len({recipe.model for recipe in fitting}) == 1 else None


def require_trainable(recipe: Recipe, config: ModelConfig) -> None:
    """Refuse a recipe whose layout cannot hold the model. Sizes that differ from the recipe's are the user's choice."""
    shape, positions = config.shape, config.values["max_position_embeddings"]
    counts = {"attention heads": shape.heads, "query groups": shape.groups, "columns of the MLP": shape.ffn}
    for what, count in counts.items():
        _require_divided(recipe, "tensor", recipe.tensor, what, count)
    if recipe.expert > 1 and not shape.experts:
        raise UserError(f"the recipe {recipe.name} spreads experts, but config.json has none: choose another recipe.")
    _require_divided(recipe, "expert", recipe.expert, "experts", shape.experts)
    if recipe.length > positions:
        raise UserError(
            f"the recipe {recipe.name} trains on {recipe.length} tokens, but config.json has {positions} "
            "max_position_embeddings: choose a recipe of shorter sequences."
        )


def _require_divided(recipe: Recipe, kind: str, ranks: int, what: str, count: int) -> None:
    if count % ranks:
        raise UserError(
            f"the recipe {recipe.name} has {ranks} {kind}-parallel ranks, which do not divide the {count} {what} of "
            "config.json: choose another recipe."
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
