"""The runs of Megatron-LM's examples/rl as scripts: what they start, for which model, and when they are refused."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_megatron.tests.options import parsed
from packages.dagrpo_megatron.tests.test_arguments import QWEN25_32B, config_in

from dagrpo.models.published import CONFIGS
from dagrpo_megatron.config import ModelConfig
from dagrpo_megatron.recipes import FILE, RECIPES, Recipe, recipe_named, recipe_of_itself, recipes_for, script

DAPO = "qwen_2p5_32b_dapo"
TORCHRUN = '#!/bin/sh\nfor each in "$@"; do printf \'%s\\n\' "$each"; done\n'
PLACE = {"NODE_RANK": "3", "MASTER_ADDR": "first.node", "ENVIRONMENT": "any.yaml"}
# The README.md and model_configs of examples/rl, apart from what config.json says and where files are.
OF_THE_64_GPU_RUN = """
--tensor-model-parallel-size 8 --pipeline-model-parallel-size 1 --sequence-parallel --use-distributed-optimizer
--transformer-impl transformer_engine --attention-backend flash --bf16 --perform-rl-step --grpo-prompts-per-step 64 --grpo-group-size 16
--grpo-iterations 1 --grpo-clamp-eps-lower 0.2 --grpo-clamp-eps-upper 0.28 --grpo-kl-beta 0.0 --calculate-per-token-loss
--global-batch-size 1024 --micro-batch-size 1 --seq-length 12000 --inference-max-seq-length 12000 --inference-max-requests 32
--lr 1e-6 --lr-warmup-samples 0 --weight-decay 0.0 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8
--recompute-granularity selective --train-samples 48828125 --eval-interval 20 --rl-prompts-per-eval 32 --save-interval 16
--num-layers 64 --rotary-base 1000000 --tokenizer-model unsloth/Qwen2.5-32B
"""


def _config(folder: Path, **config: Any) -> ModelConfig:
    return config_in(folder, **QWEN25_32B | config)


def _config_of(recipe: Recipe, folder: Path) -> ModelConfig:
    return _config(folder, **{**CONFIGS[recipe.model], "max_position_embeddings": recipe.length})


def _start(text: str, folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a torchrun that prints its arguments, one per line."""
    (folder / FILE).write_text(text)
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "torchrun").write_text(TORCHRUN)
    (programs / "torchrun").chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"} | variables
    command = ["bash", str(folder / FILE), *more]
    return subprocess.run(command, env=environment, cwd=folder.parent, capture_output=True, text=True)


def _of_megatron(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the arguments after train_rl.py."""
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout.partition("/train_rl.py\n")[2].splitlines())


def test_qwen25_32b_gets_the_64_gpu_run_by_itself(tmp_path: Path) -> None:
    config = _config(tmp_path / "a model")
    recipe = recipe_of_itself(config)
    assert recipe is not None
    done = _start(script(recipe, config), tmp_path / "a model", **PLACE)
    given = _of_megatron(done)
    assert parsed(OF_THE_64_GPU_RUN.split()).items() <= given.items()
    assert given["pretrained_checkpoint"] == str(tmp_path / "a model")
    assert given["load"] == given["save"] == str(tmp_path / "trained")
    assert "finetune" not in given
    nodes = ["--nproc-per-node", "8", "--nnodes", "8", "--node-rank", "3", "--master-addr", "first.node"]
    assert done.stdout.split()[:8] == nodes


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_holds_its_model_and_megatron_knows_every_argument(recipe: Recipe, tmp_path: Path) -> None:
    config = _config_of(recipe, tmp_path / "model")
    assert recipe in recipes_for(config)
    given = _of_megatron(_start(script(recipe, config), tmp_path / "model", **PLACE))
    ranks = given["tensor_model_parallel_size"] * given["pipeline_model_parallel_size"]
    replicas = recipe.nodes * 8 // ranks
    assert recipe.nodes * 8 % ranks == 0
    assert replicas % given.get("expert_model_parallel_size", 1) == 0
    assert given["global_batch_size"] % (given["micro_batch_size"] * replicas) == 0
    # Megatron-LM's own conditions on a GRPO run.
    assert given["grpo_prompts_per_step"] * given["grpo_group_size"] % given["global_batch_size"] == 0
    assert not given.get("rl_use_sequence_packing") or given["micro_batch_size"] == 1
    assert given["seq_length"] <= given["max_position_embeddings"]


def test_a_model_begins_with_its_dapo_run_and_has_none_where_two_published_models_or_none_have_its_sizes(
    tmp_path: Path,
) -> None:
    for recipe in RECIPES:
        (first, *others) = [other for other in RECIPES if other.model == recipe.model]
        assert "dapo.yaml" not in {other.environment for other in others}, first.name
    config = _config_of(recipe_named("qwen_2p5_math_7b"), tmp_path)
    fitting = {recipe.name for recipe in recipes_for(config)}
    assert fitting == {"qwen_2p5_math_7b_dapo", "qwen_2p5_math_7b", "qwen_2p5_distill_7b"}
    assert recipe_of_itself(config) is None
    assert recipe_of_itself(_config(tmp_path, architectures=["LlamaForCausalLM"])) is None


def test_other_sizes_are_those_of_the_config_and_variables_and_further_arguments_win(tmp_path: Path) -> None:
    text = script(recipe_named(DAPO), _config(tmp_path / "model", num_hidden_layers=63))
    variables = PLACE | {"SAVE": "/else where", "SEED": "7"}
    given = _of_megatron(_start(text, tmp_path / "model", "--lr", "2e-6", **variables))
    assert (given["num_layers"], given["tokenizer_model"]) == (63, str(tmp_path / "model"))
    assert (given["save"], given["load"], given["seed"], given["lr"]) == ("/else where", "/else where", 7, 2e-6)
    assert given["langrl_env_config"] == "any.yaml"


@pytest.mark.parametrize("missing", ["NODE_RANK", "MASTER_ADDR", "ENVIRONMENT"])
def test_what_nobody_can_guess_is_asked_for_before_anything_starts(missing: str, tmp_path: Path) -> None:
    text = script(recipe_named("qwen_2p5_32b"), _config(tmp_path / "model"))
    done = _start(text, tmp_path / "model", **{name: value for name, value in PLACE.items() if name != missing})
    assert done.returncode != 0
    assert f"{missing}: is not set" in done.stderr
    assert done.stdout == ""


def test_one_node_needs_no_address_and_dapo_no_environment(tmp_path: Path) -> None:
    text = script(replace(recipe_named(DAPO), nodes=1), _config(tmp_path / "model"))
    given = _of_megatron(_start(text, tmp_path / "model", MEGATRON_LM="/megatron"))
    assert given["langrl_env_config"] == "/megatron/examples/rl/environment_configs/dapo.yaml"


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        (DAPO, {"num_key_value_heads": 4}, "8 tensor-parallel ranks, which do not divide the 4 query groups"),
        (DAPO, {"num_attention_heads": 20, "num_key_value_heads": 8}, "20 attention heads"),
        (DAPO, {"intermediate_size": 27_649}, "27649 columns of the MLP"),
        ("qwen3_30b_a3b_moe", {}, "spreads experts, but config.json has none"),
        (DAPO, {"max_position_embeddings": 4096}, "trains on 12000 tokens, but config.json has 4096"),
    ],
)
def test_a_layout_that_cannot_hold_the_model_is_refused(
    recipe: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        script(recipe_named(recipe), _config(tmp_path, **change))
