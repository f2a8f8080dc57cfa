"""FLOPs and shares of a peak, computed by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer.attempts import graded

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.engine import sglang
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.metrics.throughput import Arithmetic, Throughput, peak_of
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import single_process

ROLLOUTS = Rollouts(
    step=0,
    group_size=2,
    graded=(graded(0, 0, reward=1.0, tokens=2), graded(0, 1, reward=0.0, tokens=4)),
    rewards=torch.tensor([1.0, 0.0]),
    components={},
)
SECONDS = {"timing/rollout_seconds": 3.0, "timing/update_seconds": 1.0}
ARITHMETIC = Arithmetic(parameters=10, attention=2)


def test_the_figures_of_a_step_are_those_computed_by_hand() -> None:
    """Six tokens were written in four seconds; prompts have two tokens, so that sequences have four and six."""
    throughput = Throughput(arithmetic=ARITHMETIC, update_peak=4896.0, rollout_peak=160.0)
    assert throughput.figures(ROLLOUTS, SECONDS) == {
        "timing/tokens_per_second": 1.5,
        "timing/rollout_mfu": 0.25,  # 120 / (3 * 160)
        "timing/update_mfu": 0.25,  # 1224 / 4896
    }


def test_tokens_that_were_discarded_or_cut_off_were_written_and_not_learned_from() -> None:
    """Six and six, or six and ten, in four seconds."""
    throughput = Throughput(arithmetic=ARITHMETIC, update_peak=4896.0, rollout_peak=None)
    figures = throughput.figures(replace(ROLLOUTS, discarded=(graded(1, 0, reward=0.0, tokens=6),)), SECONDS)
    assert figures == {"timing/tokens_per_second": 3.0, "timing/update_mfu": 0.25}
    throughput = Throughput(arithmetic=ARITHMETIC, update_peak=None, rollout_peak=320.0)
    figures = throughput.figures(replace(ROLLOUTS, sampling_metrics={"rollout/cut_off_tokens": 10.0}), SECONDS)
    assert figures == {"timing/tokens_per_second": 4.0, "timing/rollout_mfu": 320 / (3 * 320)}


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", None),  # which is no L4
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),  # a seventh of one
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA GeForce RTX 3060", None),
    ],
)
def test_a_device_is_known_by_its_whole_name_or_not_at_all(device: str, peak: float | None) -> None:
    assert peak_of(device) == peak


@pytest.fixture(scope="module")
def model(inputs: tuple[Path, Path]) -> PreTrainedModel:
    return load_policy(inputs[0], single_process()).model


def test_each_weight_of_a_model_counts_once_and_a_table_that_is_looked_up_does_not(model: PreTrainedModel) -> None:
    """Two layers of four heads with four dimensions: 2 * 16."""
    weights = sum(weight.numel() for weight in model.parameters())
    tied = Arithmetic.of(model)
    assert (tied.parameters, tied.attention) == (weights, 32)
    model.config.tie_word_embeddings = False
    table = model.get_input_embeddings().weight.numel()
    assert Arithmetic.of(model).parameters == weights - table
    model.config.tie_word_embeddings = True


def test_of_experts_those_count_that_a_token_is_sent_to() -> None:
    """Two of four experts: half of their weights."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
    experts_of = {"num_key_value_heads": 1, "moe_intermediate_size": 4, "num_experts": 4, "num_experts_per_tok": 2}
    config = Qwen3MoeConfig(**sizes, **experts_of, tie_word_embeddings=True)
    model = Qwen3MoeForCausalLM(config)
    experts = 4 * 3 * 8 * 4  # gate, up and down of each
    weights = sum(weight.numel() for weight in model.parameters())
    assert Arithmetic.of(model).parameters == weights - experts / 2


def test_a_cpu_has_no_peak(model: PreTrainedModel) -> None:
    throughput = Throughput.of(model, single_process(), sglang.Config())
    assert list(throughput.figures(ROLLOUTS, SECONDS)) == ["timing/tokens_per_second"]


@pytest.mark.parametrize(("servers", "rollout"), [([], 989e12), (["http://127.0.0.1:30000"], None)])
def test_all_processes_update_and_an_engine_elsewhere_has_no_known_devices(
    model: PreTrainedModel, servers: list[str], rollout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    world = replace(single_process(), size=2, device=torch.device("cuda"))
    throughput = Throughput.of(model, world, sglang.Config(servers=servers))
    assert (throughput.update_peak, throughput.rollout_peak) == (2 * 989e12, rollout)


def test_a_weight_that_is_frozen_gets_no_gradient_and_costs_two_thirds(inputs: tuple[Path, Path]) -> None:
    initial, _ = inputs
    plain = load_policy(initial, single_process()).model
    adapted = Arithmetic.of(load_policy(initial, single_process(), lora=Lora(rank=2)).model)
    weights = sum(weight.numel() for weight in plain.parameters())
    added = 2 * 2 * (16 + 16 + 2 * (16 + 4) + 16 + 16 + 3 * (16 + 32))  # two layers: q, k and v, o, the MLP
    assert (adapted.frozen, adapted.parameters) == (weights, weights + added)
    assert adapted.update([1]) == 4 * weights + 6 * added + 6 * 32
