"""Parameters as verl's keys, and refusals of those that have none."""

from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo_verl.mapping import Files, configuration
from dagrpo_verl.running import override

ACTOR = "actor_rollout_ref.actor"
FILES = Files(model=Path("/m"), rows=Path("/r.parquet"), attempts=("python", "job"), checkpoints=Path("/c"))
FITTING: dict[str, Any] = {
    "rollout": {"deterministic": False, "dtype": "bfloat16", "max_new_tokens": 20},
    "training": {"dtype": "bfloat16", "backend": {"name": "verl"}},
}


def keys(changed: dict[str, Any] | None = None, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    return configuration(parse(merged(FITTING, changed or {})), settings or {}, 7, FILES)


def test_steps_batches_and_optimizer_have_the_numbers_that_verl_counts_in() -> None:
    training = {
        "steps": 9,
        "prompts_per_step": 12,
        "samples_per_prompt": 5,
        "mini_batches": 3,
        "learning_rate_warmup_steps": 6,
    }
    found = keys(
        {
            "training": {
                **training,
                "learning_rate": 2e-6,
                "weight_decay": 0.1,
                "max_grad_norm": 0.5,
                "max_prompt_tokens": 30,
            }
        }
    )
    expected = {
        "trainer.total_training_steps": 9,
        "data.train_batch_size": 12,
        "actor_rollout_ref.rollout.n": 5,
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


def test_dynamic_sampling_is_verls_filter_of_groups() -> None:
    enable, metric = (f"algorithm.filter_groups.{name}" for name in ("enable", "metric"))
    assert keys()[enable] is False
    found = keys({"training": {"dynamic_sampling": {"max_rounds": 1000, "spread_of": "accuracy"}}})
    assert (found[enable], found[metric]) == (True, "acc")
    found = keys({"training": {"dynamic_sampling": {"max_rounds": 1000}}})
    assert (found[enable], found[metric]) == (True, "reward")


def test_an_adapter_is_served_as_the_parameters_say() -> None:
    lora = {"rank": 8, "alpha": 16, "target_modules": ["q_proj"]}
    merged_keys = keys({"training": {"lora": lora}})
    served_keys = keys({"training": {"lora": {"rank": 4, "serving": "adapter"}}})
    model, load = "actor_rollout_ref.model", "actor_rollout_ref.rollout.load_format"
    assert [merged_keys[f"{model}.{key}"] for key in ("lora_rank", "lora_alpha", "target_modules", "lora.merge")] == [
        8,
        16,
        ["q_proj"],
        True,
    ]
    assert [served_keys[key] for key in (f"{model}.target_modules", f"{model}.lora.merge", load)] == [
        "all-linear",
        False,
        "safetensors",
    ]
    assert f"{model}.lora_rank" not in keys()


def test_a_task_with_several_turns_has_room_for_its_longest_trajectory() -> None:
    params = parse(merged(FITTING, {"rollout": {"agent": {"name": "tool_agent", "max_tokens": 20_000}}}))
    found = configuration(params, {}, 7, FILES, several_turns=True)
    assert found["data.max_response_length"] == 19_999
    assert found[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 40_000


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (
            {},
            {
                f"{ACTOR}.policy_loss.loss_mode": "vanilla",
                f"{ACTOR}.clip_ratio_c": 1e8,
                "algorithm.adv_estimator": "grpo",
            },
        ),
        (
            {"loss": {"name": "ppo_clip", "clip_high": 0.28, "dual_clip": 10.0}},
            {f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.clip_ratio_c": 10.0},
        ),
        ({"loss": {"name": "gmpo"}}, {f"{ACTOR}.policy_loss.loss_mode": "geo_mean", f"{ACTOR}.clip_ratio_low": 0.4}),
        (
            {"loss": {"name": "cispo", "maximum": 1.25}},
            {f"{ACTOR}.clip_ratio_low": 1.0, f"{ACTOR}.clip_ratio_high": 0.25},
        ),
        ({"advantage": {"name": "grpo", "normalize_by_std": False}}, {"algorithm.norm_adv_by_std_in_grpo": False}),
        (
            {"aggregation": "constant"},
            {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 20},
        ),
        (
            {"correction": {"name": "token_masked"}},
            {
                "algorithm.rollout_correction.rollout_is": "token",
                "algorithm.rollout_correction.rollout_is_threshold": "0.5_5.0",
            },
        ),
        ({"correction": {"name": "none"}}, {"algorithm.rollout_correction.rollout_is": None}),
        (
            {"kl": {"coefficient": 0.001}},
            {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "low_var_kl"},
        ),
        ({"terms": {"entropy": {"coefficient": 0.01}}}, {f"{ACTOR}.entropy_coeff": 0.01}),
    ],
)
def test_an_objective_has_the_keys_of_verls_equal_one(algorithm: dict[str, Any], expected: dict[str, Any]) -> None:
    found = keys({"algorithm": algorithm})
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rollout": {"deterministic": True}}, "rollout.deterministic is true.*set it to false"),
        ({"training": {"dtype": "float32"}}, "training.dtype is float32.*set it to bfloat16"),
        (
            {"model": {"fresh": {"vision": {"family": "qwen2_5_vl"}}}, "training": {"vision": "frozen"}},
            "training.vision is frozen.*set it to trained, or train an adapter",
        ),
        ({"training": {"dtype": "float16"}}, "training.dtype is float16.*set it to bfloat16"),
        (
            {
                "training": {
                    "prompts_per_step": 8,
                    "samples_per_prompt": 5,
                    "mini_batches": 4,
                    "learning_rate_warmup_steps": 0,
                },
                "runtime": {"training": {"processes": 4}},
            },
            r"10 sequences, no multiple of runtime.training.processes \(4\)",
        ),
        ({"runtime": {"training": {"save_every_minutes": 5}}}, "save_every_minutes is 5.*save_every to a number"),
        (
            {"reward": {"components": {"format": {"final_weight": 0.0, "final_step": 9}}}},
            "format.final_weight changes a weight over steps.*set it to null",
        ),
        (
            {"reward": {"components": {"reward_model": {"folder": "models/rm"}}}},
            "has reward_model, which asks a model.*leave it out",
        ),
        ({"training": {"gates": {"truncated": 0.5}}}, "training.gates is not as by default"),
        (
            {
                "model": {"source": "hub", "repository": "Qwen/Qwen3-30B-A3B", "revision": 40 * "a"},
                "training": {"lora": {"rank": 8}},
            },
            "lora.rank is above 0 and the model is a mixture of experts",
        ),
        ({"training": {"dynamic_sampling": {"max_rounds": 10}}}, "max_rounds is 10.*set it to 1000, the most, or to 1"),
        (
            {"training": {"dynamic_sampling": {"max_rounds": 1000, "oversampling": 3.0}}},
            "oversampling is 3.0.*two prompts for each group",
        ),
        ({"training": {"learning_rate_warmup_steps": 3, "mini_batches": 2}}, "no multiple of training.mini_batches"),
        (
            {"algorithm": {"loss": {"name": "vespo"}, "correction": {"name": "none"}}},
            "algorithm.loss is vespo.*choose one of ppo_clip",
        ),
        ({"algorithm": {"advantage": {"name": "remax"}}}, "algorithm.advantage is remax.*rloo"),
        ({"algorithm": {"correction": {"name": "geometric_masked"}}}, "algorithm.correction is geometric_masked"),
        ({"algorithm": {"aggregation": "prompt-mean"}}, "algorithm.aggregation is prompt-mean"),
        ({"algorithm": {"terms": {"positive_nll": {"coefficient": 0.1}}}}, "algorithm.terms.positive_nll"),
        (
            {"experiment": {"train": "gsm8k_tool", "evaluate": ["gsm8k"], "tasks": ["gsm8k", "gsm8k_tool"]}},
            "max_tokens is null and an attempt has several turns",
        ),
        ({"training": {"backend": {"name": "verl", "settings": {"data.seed": 1}}}}, "data.seed, and data.seed follows"),
        (
            {"training": {"backend": {"name": "verl", "settings": {"data": {"seed": 1}}}}},
            "data, and data.filter_overlong_prompts follows",
        ),
        (
            {"training": {"backend": {"name": "verl", "settings": {"data.trust_remote_code": True}}}},
            "trust_remote_code, which runs code",
        ),
        (
            {"training": {"backend": {"name": "verl", "settings": {"custom_reward_function.path": "mine.py"}}}},
            "custom_reward_function.path, which changes nothing.*section reward",
        ),
        (
            {"training": {"backend": {"name": "verl", "settings": {"reward": {"reward_manager": {"name": "dapo"}}}}}},
            "reward, and reward.num_workers follows",
        ),
        (
            {"training": {"backend": {"name": "verl", "settings": {"reward.reward_manager.name": "dapo"}}}},
            "reward.reward_manager.name, which changes nothing",
        ),
    ],
)
def test_what_verl_cannot_honour_is_refused_by_name_when_parameters_are_read(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        parse(merged(FITTING, changed))


def test_values_are_spelled_in_hydras_grammar() -> None:
    assert override("a", r"C:\d\\") == r'a="C:\d\\\\"'  # escapes only before a quote
    assert override("a", r"\d\"") == r'a="\d\\\""'
    assert override("a.b", 'x "y"') == 'a.b="x \\"y\\""'
    assert override("a", [1, "b", None, True]) == 'a=[1,"b",null,true]'
    assert override("actor_rollout_ref.rollout.custom.c", ["d"]) == '++actor_rollout_ref.rollout.custom.c=["d"]'
