"""Parameters as Megatron-LM's arguments, and refusals of those that have none."""

from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo_megatron.backend.mapping import Files, arguments, command_line

FILES = Files(initial=Path("/m"), tokenizer=Path("/t"), environment=Path("/e.yaml"), checkpoints=Path("/c"))
FITTING: dict[str, Any] = {
    "rollout": {"deterministic": False, "dtype": "bfloat16", "max_new_tokens": 20},
    "training": {"dtype": "bfloat16", "backend": {"name": "megatron_lm"}},
    "runtime": {"backend": {"source": "Megatron-LM"}},
}


def named(changed: dict[str, Any] | None = None, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    return arguments(parse(merged(FITTING, changed or {})), settings or {}, 7, FILES)


def test_steps_batches_and_optimizer_have_the_numbers_that_megatron_lm_counts_in() -> None:
    training = {
        "steps": 9,
        "prompts_per_step": 12,
        "samples_per_prompt": 5,
        "mini_batches": 3,
        "learning_rate": 2e-6,
        "learning_rate_warmup_steps": 6,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "max_prompt_tokens": 30,
    }
    runtime = {"training": {"save_every": 2, "micro_batch_tokens": 120}, "engine": {"tensor_parallel": 2}}
    found = named({"training": training, "runtime": runtime, "rollout": {"deterministic": False}})
    expected = {
        "train-iters": 27,  # updates
        "grpo-prompts-per-step": 12,
        "grpo-group-size": 5,
        "global-batch-size": 20,  # sequences of an update
        "micro-batch-size": 2,  # sequences of 56 tokens
        "seq-length": 56,
        "inference-max-seq-length": 56,
        "lr": 2e-6,
        "lr-warmup-iters": 6,
        "weight-decay": 0.1,
        "clip-grad": 0.5,
        "save-interval": 6,
        "save-retain-interval": 30,  # beyond the last: one checkpoint stays
        "seed": 7,
        "tensor-model-parallel-size": 2,
        "sequence-parallel": True,
        "save": "/c",
        "load": "/c",
        "pretrained-checkpoint": "/m",
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (
            {},
            {
                "calculate-per-token-loss": True,
                "grpo-clamp-eps-lower": 0.2,
                "grpo-kl-beta": 0.0,
                "rl-inference-logprobs-is-correction": True,
                "rl-importance-sampling-truncation-coef": 2.0,
            },
        ),
        ({"loss": {"name": "ppo_clip", "clip_high": 0.28}}, {"grpo-clamp-eps-upper": 0.28}),
        ({"correction": {"name": "none"}}, {"rl-inference-logprobs-is-correction": False}),
        ({"kl": {"coefficient": 0.001}}, {"grpo-kl-beta": 0.001}),
    ],
)
def test_an_objective_has_the_arguments_of_megatron_lms_equal_one(
    algorithm: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = named({"algorithm": algorithm})
    assert {name: found[name] for name in expected} == expected


def test_means_of_sequences_have_passes_of_one() -> None:
    runtime = {"training": {"micro_batch_tokens": 10_000}}
    found = named({"algorithm": {"aggregation": "seq-mean-token-mean"}, "runtime": runtime})
    assert (found["micro-batch-size"], found["calculate-per-token-loss"]) == (1, False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rollout": {"temperature": 0.8}}, "rollout.temperature is 0.8.*logits as they are"),
        ({"rollout": {"deterministic": True}}, "rollout.deterministic is true.*set it to false"),
        ({"model": {"fresh": {"vision": {"family": "qwen2_5_vl"}}}}, "model.fresh.vision.family is not none"),
        ({"training": {"dtype": "float16"}}, "training.dtype is float16.*set it to bfloat16"),
        ({"training": {"lora": {"rank": 8}}}, "training.lora.rank is 8.*set it to 0"),
        ({"training": {"staleness": 1}}, "training.staleness is 1.*rl-generation-lag"),
        ({"algorithm": {"loss": {"name": "gspo"}}}, "algorithm.loss.name is gspo.*ppo_clip"),
        ({"algorithm": {"loss": {"name": "ppo_clip", "dual_clip": 3.0}}}, "dual_clip is 3.0.*null"),
        ({"algorithm": {"advantage": {"name": "rloo"}}}, "algorithm.advantage.name is rloo.*grpo"),
        ({"algorithm": {"correction": {"name": "sequence_masked"}}}, "algorithm.correction is sequence_masked"),
        ({"algorithm": {"aggregation": "constant"}}, "algorithm.aggregation is constant.*token-mean"),
        ({"algorithm": {"kl": {"coefficient": 0.1, "estimator": "k2"}}}, "algorithm.kl has k2 in the loss"),
        ({"algorithm": {"terms": {"entropy": {"coefficient": 0.1}}}}, "algorithm.terms.entropy"),
        ({"experiment": {"train": "gsm8k_tool", "evaluate": ["gsm8k"], "tasks": ["gsm8k", "gsm8k_tool"]}}, "has tools"),
        ({"runtime": {"backend": {"source": None}}}, "runtime.backend.source is null"),
        ({"training": {"backend": {"settings": {"rl-use-sequence-packing": True}}}}, "warmup_steps is above 0 with rl"),
        (
            {
                "training": {
                    "backend": {"settings": {"rl-use-sequence-packing": True}},
                    "learning_rate_warmup_steps": 0,
                },
                "algorithm": {"aggregation": "seq-mean-token-mean"},
            },
            "aggregation is seq-mean-token-mean with rl-use",
        ),
        ({"training": {"backend": {"settings": {"lr": 1}}}}, "has lr, and lr follows"),
        ({"training": {"backend": {"settings": {"trust-remote-code": True}}}}, "runs code of a checkpoint"),
        ({"training": {"backend": {"settings": {"finetune": True}}}}, "begins at step 0 at every start"),
        ({"training": {"backend": {"settings": {"rl-default-temperature": 0.7}}}}, "its loss does not divide by"),
    ],
)
def test_what_megatron_lm_cannot_honour_is_refused_by_name_when_parameters_are_read(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        parse(merged(FITTING, changed))


def test_arguments_are_words_of_a_command_line() -> None:
    given = {"lr": 1e-6, "bf16": True, "swiglu": False, "recompute-modules": ["core_attn", "mlp"], "save": None}
    assert command_line(given) == ["--lr", "1e-06", "--bf16", "--recompute-modules", "core_attn", "mlp"]
