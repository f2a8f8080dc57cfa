"""The runs of Megatron-LM's examples/rl as scripts: what they start, for which model, and when they are refused."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_megatron.tests.options import parsed
from packages.dagrpo_megatron.tests.test_arguments import QWEN25_32B

from dagrpo_megatron.config import ModelConfig, load_config
from dagrpo_megatron.recipes import (
    FILE,
    RECIPES,
    Recipe,
    recipe_named,
    recipe_of_itself,
    recipes_for,
    require_trainable,
    script,
)

TORCHRUN = '#!/bin/sh\nfor each in "$@"; do printf \'%s\\n\' "$each"; done\n'
PLACE = {"NODE_RANK": "3", "MASTER_ADDR": "first.node", "ENVIRONMENT": "any.yaml"}
# The README.md and model_configs of examples/rl, apart from what config.json says and where files are.
OF_THE_64_GPU_RUN = {
    "tensor_model_parallel_size": 8,
    "pipeline_model_parallel_size": 1,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "transformer_impl": "transformer_engine",
    "attention_backend": "flash",
    "bf16": True,
    "perform_rl_step": True,
    "grpo_prompts_per_step": 64,
    "grpo_group_size": 16,
    "grpo_iterations": 1,
    "grpo_clamp_eps_lower": 0.2,
    "grpo_clamp_eps_upper": 0.28,
    "grpo_kl_beta": 0.0,
    "calculate_per_token_loss": True,
    "global_batch_size": 1024,
    "micro_batch_size": 1,
    "seq_length": 12_000,
    "inference_max_seq_length": 12_000,
    "inference_max_requests": 32,
    "lr": 1e-6,
    "lr_warmup_samples": 0,
    "weight_decay": 0.0,
    "clip_grad": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-8,
    "recompute_granularity": "selective",
    "train_samples": 48_828_125,
    "eval_interval": 20,
    "rl_prompts_per_eval": 32,
    "save_interval": 16,
}


def _config(folder: Path, **config: Any) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN25_32B | config))
    return load_config(folder)


def _config_of(recipe: Recipe, folder: Path) -> ModelConfig:
    model = recipe.model
    experts = {"num_experts": model.experts, "num_experts_per_tok": 8} if model.experts else {}
    return _config(
        folder,
        architectures=[model.architecture],
        num_hidden_layers=model.layers,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_attention_heads=model.heads,
        num_key_value_heads=model.groups,
        max_position_embeddings=recipe.length,
        **experts,
    )


def _start(text: str, folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a torchrun that prints its arguments, one per line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(text)
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "torchrun").write_text(TORCHRUN)
    (programs / "torchrun").chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"} | variables
    command = ["bash", str(folder / FILE), *more]
    return subprocess.run(command, env=environment, cwd=folder.parent, capture_output=True, text=True)


def _of_megatron(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What comes after train_rl.py."""
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.endswith("/train_rl.py"))
    return lines[place + 1 :]


def test_qwen25_32b_gets_the_64_gpu_run_by_itself(tmp_path: Path) -> None:
    config = _config(tmp_path / "a model")
    recipe = recipe_of_itself(config)
    assert recipe is not None
    assert (recipe.name, recipe.nodes) == ("qwen_2p5_32b_dapo", 8)
    done = _start(script(recipe, config), tmp_path / "a model", **PLACE)
    given = parsed(_of_megatron(done))
    assert {name: given.get(name) for name in OF_THE_64_GPU_RUN} == OF_THE_64_GPU_RUN
    assert (given["num_layers"], given["rotary_base"]) == (64, 1_000_000)  # of config.json
    assert given["pretrained_checkpoint"] == str(tmp_path / "a model")
    assert given["load"] == given["save"] == str(tmp_path / "trained")
    assert given["tokenizer_model"] == "unsloth/Qwen2.5-32B"
    assert "finetune" not in given
    of_torchrun = done.stdout[: done.stdout.index("train_rl.py")].split()
    nodes = ["--nproc-per-node", "8", "--nnodes", "8", "--node-rank", "3", "--master-addr", "first.node"]
    assert of_torchrun[:8] == nodes


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_holds_its_model_and_megatron_knows_every_argument(recipe: Recipe, tmp_path: Path) -> None:
    config = _config_of(recipe, tmp_path / "model")
    given = parsed(_of_megatron(_start(script(recipe, config), tmp_path / "model", **PLACE)))
    ranks = given["tensor_model_parallel_size"] * given["pipeline_model_parallel_size"]
    replicas = recipe.nodes * 8 // ranks
    assert recipe.nodes * 8 % ranks == 0
    assert replicas % given.get("expert_model_parallel_size", 1) == 0
    assert given["global_batch_size"] % (given["micro_batch_size"] * replicas) == 0
    # Megatron-LM's own conditions on a GRPO run.
    assert given["grpo_prompts_per_step"] * given["grpo_group_size"] % given["global_batch_size"] == 0
    assert not given.get("rl_use_sequence_packing") or given["micro_batch_size"] == 1
    assert given["seq_length"] <= given["max_position_embeddings"]


def test_names_are_unique_and_each_model_begins_with_its_dapo_run_where_it_has_one() -> None:
    names = [recipe.name for recipe in RECIPES]
    assert len(set(names)) == len(names)
    for recipe in RECIPES:
        (first, *others) = [other for other in RECIPES if other.model == recipe.model]
        assert "dapo.yaml" not in {other.environment for other in others}, first.name


def test_sizes_of_two_published_models_leave_the_choice_to_the_user(tmp_path: Path) -> None:
    config = _config_of(recipe_named("qwen_2p5_math_7b"), tmp_path)
    fitting = {recipe.name for recipe in recipes_for(config)}
    assert fitting == {"qwen_2p5_math_7b_dapo", "qwen_2p5_math_7b", "qwen_2p5_distill_7b"}
    assert recipe_of_itself(config) is None


@pytest.mark.parametrize("change", [{"num_hidden_layers": 63}, {"architectures": ["LlamaForCausalLM"]}])
def test_another_model_gets_none_by_itself(change: dict[str, Any], tmp_path: Path) -> None:
    assert recipe_of_itself(_config(tmp_path, **change)) is None


def test_a_recipe_for_other_sizes_takes_those_of_the_config_and_the_tokenizer_of_the_checkpoint(tmp_path: Path) -> None:
    config = _config(tmp_path / "model", num_hidden_layers=63)
    text = script(recipe_named("qwen_2p5_32b_dapo"), config)
    given = parsed(_of_megatron(_start(text, tmp_path / "model", **PLACE)))
    assert given["num_layers"] == 63
    assert given["tokenizer_model"] == str(tmp_path / "model")


def test_variables_and_further_arguments_win(tmp_path: Path) -> None:
    text = script(recipe_named("qwen_2p5_32b_dapo"), _config(tmp_path / "model"))
    variables = PLACE | {"SAVE": "/else where", "TOKENIZER": "mine", "SEED": "7"}
    given = parsed(_of_megatron(_start(text, tmp_path / "model", "--lr", "2e-6", **variables)))
    assert given["lr"] == 2e-6
    assert (given["save"], given["load"]) == ("/else where", "/else where")
    assert (given["tokenizer_model"], given["seed"]) == ("mine", 7)
    assert given["langrl_env_config"] == "any.yaml"


@pytest.mark.parametrize("missing", ["NODE_RANK", "MASTER_ADDR", "ENVIRONMENT"])
def test_what_nobody_can_guess_is_asked_for_before_anything_starts(missing: str, tmp_path: Path) -> None:
    text = script(recipe_named("qwen_2p5_32b"), _config(tmp_path / "model"))
    done = _start(text, tmp_path / "model", **{name: value for name, value in PLACE.items() if name != missing})
    assert done.returncode != 0
    assert f"{missing}: is not set" in done.stderr
    assert done.stdout == ""


def test_one_node_needs_no_address_and_dapo_no_environment(tmp_path: Path) -> None:
    recipe = replace(recipe_named("qwen_2p5_32b_dapo"), nodes=1)
    text = script(recipe, _config(tmp_path / "model"))
    given = parsed(_of_megatron(_start(text, tmp_path / "model", MEGATRON_LM="/megatron")))
    assert given["langrl_env_config"] == "/megatron/examples/rl/environment_configs/dapo.yaml"


DAPO = "qwen_2p5_32b_dapo"


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
        require_trainable(recipe_named(recipe), _config(tmp_path, **change))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no recipe 'qwen3_9b': choose .*qwen3_8b"):
        recipe_named("qwen3_9b")
    with pytest.raises(ValueError, match=r"no recipe 'x': choose qwen_2p5_32b_dapo or .*openmath\.$"):
        recipe_named("x")
