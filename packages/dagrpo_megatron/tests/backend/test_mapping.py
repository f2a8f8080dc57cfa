"""Parameters as Megatron-LM's arguments, refusals of those that have none, and the padding of its tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.config.overlay import merged
from dagrpo.config.presets import composed
from dagrpo.config.schema import parse
from dagrpo.config.scripts import presets
from dagrpo.core.errors import UserError
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo_foreign.files import Inputs
from dagrpo_megatron.backend.mapping import Files, arguments, command_line
from dagrpo_megatron.backend.running import padded_tokenizer

FILES = Files(initial=Path("/m"), tokenizer=Path("/t"), environment=Path("/e.yaml"), checkpoints=Path("/c"))
FITTING = """
rollout: {deterministic: false, dtype: bfloat16, max_new_tokens: 20}
training: {dtype: bfloat16, backend: {name: megatron_lm}}
runtime: {backend: {source: Megatron-LM}}
"""


def params(changed: str) -> Any:
    return parse(merged(yaml.safe_load(FITTING), yaml.safe_load(changed) or {}))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            "{training: {steps: 9, prompts_per_step: 12, samples_per_prompt: 5, mini_batches: 3, learning_rate: 2.0e-6, "
            "learning_rate_warmup_steps: 6, weight_decay: 0.1, max_grad_norm: 0.5, max_prompt_tokens: 30}, "
            "runtime: {training: {save_every: 2, micro_batch_tokens: 120}, engine: {tensor_parallel: 2}}}",
            {
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
            },
        ),
        (
            "",
            {
                "calculate-per-token-loss": True,
                "grpo-clamp-eps-lower": 0.2,
                "grpo-kl-beta": 0.0,
                "rl-inference-logprobs-is-correction": True,
                "rl-importance-sampling-truncation-coef": 2.0,
            },
        ),
        ("algorithm: {loss: {name: ppo_clip, clip_high: 0.28}}", {"grpo-clamp-eps-upper": 0.28}),
        ("algorithm: {correction: {name: none}}", {"rl-inference-logprobs-is-correction": False}),
        ("algorithm: {kl: {coefficient: 0.001}}", {"grpo-kl-beta": 0.001}),
        (  # means of sequences have passes of one
            "{algorithm: {aggregation: seq-mean-token-mean}, runtime: {training: {micro_batch_tokens: 10000}}}",
            {"micro-batch-size": 1, "calculate-per-token-loss": False},
        ),
    ],
)
def test_parameters_have_the_arguments_and_numbers_of_megatron_lm(changed: str, expected: dict[str, Any]) -> None:
    found = arguments(params(changed), {}, 7, FILES)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("rollout: {temperature: 0.8}", "rollout.temperature is 0.8, which .*logits as they are, or train with"),
        ("rollout: {deterministic: true}", "rollout.deterministic"),
        ("model: {fresh: {vision: {family: qwen2_5_vl}}}", "model.fresh.vision.family"),
        ("training: {dtype: float16}", "training.dtype"),
        ("training: {lora: {rank: 8}}", "training.lora.rank"),
        ("training: {staleness: 1}", "rl-generation-lag"),
        ("algorithm: {loss: {name: gspo}}", "algorithm.loss.name"),
        ("algorithm: {loss: {name: ppo_clip, dual_clip: 3.0}}", "dual_clip"),
        ("algorithm: {advantage: {name: rloo}}", "algorithm.advantage.name"),
        ("algorithm: {correction: {name: sequence_masked}}", "algorithm.correction"),
        ("algorithm: {aggregation: constant}", "algorithm.aggregation"),
        ("algorithm: {kl: {coefficient: 0.1, estimator: k2}}", "algorithm.kl has k2 in the loss"),
        ("algorithm: {terms: {entropy: {coefficient: 0.1}}}", "algorithm.terms.entropy"),
        ("experiment: {train: gsm8k_tool, evaluate: [gsm8k], tasks: [gsm8k, gsm8k_tool]}", "has tools"),
        ("runtime: {backend: {source: null}}", "runtime.backend.source"),
        ("training: {backend: {settings: {rl-use-sequence-packing: true}}}", "warmup_steps is above 0 with rl"),
        (
            "{training: {backend: {settings: {rl-use-sequence-packing: true}}, learning_rate_warmup_steps: 0}, "
            "algorithm: {aggregation: seq-mean-token-mean}}",
            "aggregation is seq-mean-token-mean with rl-use",
        ),
        ("training: {backend: {settings: {lr: 1}}}", "has lr, and lr follows"),
        ("training: {backend: {settings: {trust-remote-code: true}}}", "runs code of a checkpoint"),
        ("training: {backend: {settings: {finetune: true}}}", "begins at step 0 at every start"),
        ("training: {backend: {settings: {rl-default-temperature: 0.7}}}", "its loss does not divide by"),
    ],
)
def test_what_megatron_lm_cannot_honour_is_refused_by_name_when_parameters_are_read(changed: str, message: str) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        params(changed)


def test_scripts_of_megatron_lm_compose_with_its_own_trainer() -> None:
    names = [name for name in presets(Path("presets")) if name.startswith("megatron/")]
    assert len(names) == 13
    for name in names:
        assert composed([name, "megatron_lm"], Path("presets")).training.backend.name == "megatron_lm"


def test_arguments_are_words_of_a_command_line() -> None:
    given = {"lr": 1e-6, "bf16": True, "swiglu": False, "recompute-modules": ["core_attn", "mlp"], "save": None}
    assert command_line(given) == ["--lr", "1e-06", "--bf16", "--recompute-modules", "core_attn", "mlp"]


def inputs(folder: Path, padding: str) -> Inputs:
    """A tokenizer with this padding token, as the initial checkpoint."""
    tokenizer = character_tokenizer(128, pictures=True)
    tokenizer.pad_token = padding
    tokenizer.save_pretrained(folder)
    return Inputs(model=folder, rows=folder, prompts=())


def test_a_padding_token_that_ends_texts_is_replaced_by_another_special_one(tmp_path: Path) -> None:
    end = str(character_tokenizer(128).eos_token)
    folder = padded_tokenizer(inputs(tmp_path, end), tmp_path)
    tokenizer = load_tokenizer(folder)
    assert folder == tmp_path / "tokenizer"
    assert tokenizer.eos_token == end
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
    assert tokenizer.encode("1+2") == load_tokenizer(tmp_path).encode("1+2")
    assert padded_tokenizer(inputs(tmp_path, str(tokenizer.pad_token)), tmp_path) == tmp_path  # one of its own stays


def test_a_tokenizer_without_another_special_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(tmp_path, str(character_tokenizer(128).eos_token))
    end = load_tokenizer(tmp_path).eos_token_id
    monkeypatch.setattr(type(load_tokenizer(tmp_path)), "get_added_vocab", lambda self: {self.eos_token: end})
    with pytest.raises(UserError, match="no special token beside its end token"):
        padded_tokenizer(given, tmp_path)
