"""Parameters as verl's keys, and refusals of those that have none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dagrpo.config.overlay import merged
from dagrpo.config.presets import composed
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo_verl.mapping import Files, configuration, planned

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
PRESETS = Path("presets")
FILES = Files(model=Path("/m"), rows=Path("/r.parquet"), attempts=("python", "job"), checkpoints=Path("/c"))
FITTING = """
rollout: {deterministic: false, dtype: bfloat16, max_new_tokens: 20}
training: {dtype: bfloat16, backend: {name: verl}}
"""


def params(changed: str) -> Any:
    return parse(merged(yaml.safe_load(FITTING), yaml.safe_load(changed) or {}))


def keys(changed: str = "", several_turns: bool = False) -> dict[str, Any]:
    return configuration(params(changed), {}, 7, FILES, several_turns=several_turns)


def test_steps_batches_and_optimizer_have_the_numbers_that_verl_counts_in() -> None:
    found = keys(
        "training: {steps: 9, prompts_per_step: 12, samples_per_prompt: 5, mini_batches: 3, learning_rate_warmup_steps: 6, "
        "learning_rate: 2.0e-6, weight_decay: 0.1, max_grad_norm: 0.5, max_prompt_tokens: 30}"
    )
    expected = {
        "trainer.total_training_steps": 9,
        "data.train_batch_size": 12,
        f"{ROLLOUT}.n": 5,
        f"{ACTOR}.ppo_mini_batch_size": 4,  # in prompts
        f"{ACTOR}.optim.lr_warmup_steps": 2,  # in steps
        f"{ACTOR}.optim.lr": 2e-6,
        f"{ACTOR}.optim.weight_decay": 0.1,
        f"{ACTOR}.optim.clip_grad": 0.5,
        f"{ACTOR}.grad_clip": 0.5,
        "data.max_prompt_length": 30,
        "data.max_response_length": 20,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 16_384,
        "data.seed": 7,
        "trainer.default_local_dir": "/c",
    }
    assert {name: found[name] for name in expected} == expected


def test_a_task_with_several_turns_has_room_for_its_longest_trajectory() -> None:
    found = keys("rollout: {agent: {name: tool_agent, max_tokens: 20000}}", several_turns=True)
    assert found["data.max_response_length"] == 19_999
    assert found[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 40_000


# Parameters of ours => verl's keys, where ACTOR, ROLLOUT, MODEL, FILTER and CORRECTION stand for longer names.
EQUAL = """\
{} => ACTOR.policy_loss.loss_mode: vanilla, ACTOR.clip_ratio_c: 1.0e+8, algorithm.adv_estimator: grpo, FILTER.enable: false
algorithm: {loss: {name: ppo_clip, clip_high: 0.28, dual_clip: 10.0}} => ACTOR.clip_ratio_high: 0.28, ACTOR.clip_ratio_c: 10.0
algorithm: {loss: {name: gmpo}} => ACTOR.policy_loss.loss_mode: geo_mean, ACTOR.clip_ratio_low: 0.4
algorithm: {loss: {name: cispo, maximum: 1.25}} => ACTOR.clip_ratio_low: 1.0, ACTOR.clip_ratio_high: 0.25
algorithm: {advantage: {name: grpo, normalize_by_std: false}} => algorithm.norm_adv_by_std_in_grpo: false
algorithm: {aggregation: constant} => ACTOR.loss_agg_mode: seq-mean-token-sum-norm, ACTOR.loss_scale_factor: 20
algorithm: {correction: {name: token_masked}} => CORRECTION: token, CORRECTION_threshold: "0.5_5.0"
algorithm: {correction: {name: none}} => CORRECTION: null
algorithm: {kl: {coefficient: 0.001}} => ACTOR.use_kl_loss: true, ACTOR.kl_loss_type: low_var_kl, algorithm.use_kl_in_reward: false
algorithm: {advantage: {name: rloo}, kl: {coefficient: 0.1, place: reward, estimator: k1}} => ACTOR.use_kl_loss: false, REWARD_KL
algorithm: {terms: {entropy: {coefficient: 0.01}}} => ACTOR.entropy_coeff: 0.01
training: {dynamic_sampling: {max_rounds: 1000, spread_of: accuracy}} => FILTER.enable: true, FILTER.metric: acc
training: {dynamic_sampling: {max_rounds: 1000}} => FILTER.metric: reward
training: {lora: {rank: 8, alpha: 16, target_modules: [q_proj]}} => MODEL.lora_rank: 8, MODEL.lora_alpha: 16, MODEL.lora.merge: true
training: {lora: {rank: 8, target_modules: [q_proj]}} => MODEL.target_modules: [q_proj]
training: {lora: {rank: 4, serving: adapter}} => MODEL.target_modules: all-linear, MODEL.lora.merge: false, ROLLOUT.load_format: safetensors
"""
NAMES = {
    "ACTOR": ACTOR,
    "ROLLOUT": ROLLOUT,
    "MODEL": "actor_rollout_ref.model",
    "FILTER": "algorithm.filter_groups",
    "CORRECTION": "algorithm.rollout_correction.rollout_is",
    "REWARD_KL": "algorithm.use_kl_in_reward: true, algorithm.kl_penalty: kl",
}


@pytest.mark.parametrize("line", EQUAL.splitlines())
def test_parameters_have_the_keys_of_verls_equal_plug_ins(line: str) -> None:
    changed, theirs = line.split(" => ")
    for short, long in NAMES.items():
        theirs = theirs.replace(short, long)
    expected, found = yaml.safe_load(f"{{{theirs}}}"), keys(changed)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("rollout: {deterministic: true}", "rollout.deterministic is true, which .*: set it to false, or train with"),
        ("training: {dtype: float32}", "training.dtype is float32"),
        ("training: {dtype: float16}", "training.dtype is float16"),
        ("{model: {fresh: {vision: {family: qwen2_5_vl}}}, training: {vision: frozen}}", "or train an adapter"),
        (
            "{training: {prompts_per_step: 8, samples_per_prompt: 5, mini_batches: 4, learning_rate_warmup_steps: 0}, "
            "runtime: {training: {processes: 4}}}",
            "10 sequences, no multiple of runtime.training.processes",
        ),
        ("runtime: {training: {save_every_minutes: 5}}", "save_every to a number"),
        ("reward: {components: {format: {final_weight: 0.0, final_step: 9}}}", "format.final_weight"),
        ("reward: {components: {reward_model: {folder: models/rm}}}", "has reward_model"),
        ("training: {gates: {truncated: 0.5}}", "training.gates"),
        (
            "{model: {source: hub, repository: Qwen/Qwen3-30B-A3B, revision: %s}, training: {lora: {rank: 8}}}"
            % (40 * "a"),
            "mixture of experts",
        ),
        ("training: {dynamic_sampling: {max_rounds: 10}}", "set it to 1000, the most, or to 1"),
        ("training: {dynamic_sampling: {max_rounds: 1000, oversampling: 3.0}}", "two prompts for each group"),
        ("training: {learning_rate_warmup_steps: 3, mini_batches: 2}", "no multiple of training.mini_batches"),
        ("algorithm: {loss: {name: vespo}, correction: {name: none}}", "algorithm.loss is vespo"),
        ("algorithm: {advantage: {name: remax}}", "algorithm.advantage is remax"),
        ("algorithm: {correction: {name: geometric_masked}}", "algorithm.correction"),
        ("algorithm: {aggregation: prompt-mean}", "algorithm.aggregation"),
        ("algorithm: {terms: {positive_nll: {coefficient: 0.1}}}", "algorithm.terms.positive_nll"),
        ("algorithm: {off_policy_mask: 0.5}", "algorithm.off_policy_mask"),
        ("experiment: {train: gsm8k_tool, evaluate: [gsm8k], tasks: [gsm8k, gsm8k_tool]}", "max_tokens is null"),
        ("training: {backend: {name: verl, settings: {data.seed: 1}}}", "data.seed, and data.seed follows"),
        ("training: {backend: {name: verl, settings: {data: {seed: 1}}}}", "data, and data.filter_overlong_prompts"),
        ("training: {backend: {name: verl, settings: {data.trust_remote_code: true}}}", "runs code of a checkpoint"),
        ("training: {backend: {name: verl, settings: {custom_reward_function.path: mine.py}}}", "changes nothing"),
        ("training: {backend: {name: verl, settings: {reward: {reward_manager: {name: a}}}}}", "reward.num_workers"),
        ("training: {backend: {name: verl, settings: {reward.reward_manager.name: dapo}}}", "changes nothing"),
    ],
)
def test_what_verl_cannot_honour_is_refused_by_name_when_parameters_are_read(changed: str, message: str) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        params(changed)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("verl/qwen2_5_3b_gsm8k_multiturn", {"data.max_response_length": 2047}),
        ("verl/qwen2_5_0_5b_gsm8k_multiturn_w_interaction", {f"{ROLLOUT}.n": 8}),
        ("verl/qwen2_5_3b_geo3k_multiturn", {"data.max_response_length": 4095}),
        ("verl/qwen3_vl_8b_fsdp", {"data.max_prompt_length": 1024}),
        ("verl/qwen2_5_vl_7b_lora", {"actor_rollout_ref.model.exclude_modules": ".*visual.*"}),
    ],
)
def test_scripts_with_tools_users_and_pictures_compose_with_verl(name: str, expected: dict[str, object]) -> None:
    params: Any = composed([name, "verl"], PRESETS)
    found = planned(params, {})
    assert {key: found[key] for key in expected} == expected
