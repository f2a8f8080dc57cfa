"""Figures computed by hand: the distance between engine and trainer, turns and calls, FLOPs and shares of a peak."""

import statistics
from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.attempts import attempt, graded, scored, written

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import CallStatus, ToolCall
from dagrpo.engine import sglang
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.metrics.off_policy import effective_sample_size, off_policy_metrics
from dagrpo.trainer.metrics.step import CALLED, turn_metrics, turn_timings
from dagrpo.trainer.metrics.throughput import Arithmetic, Throughput, peak_of
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import single_process

# Two trajectories, of two tokens and of one. The trainer finds them 1, 3/2 and 1/4 times as likely as the engine.
ROLLOUT, TRAINER, LENGTHS = [0.5, 0.5, 0.25], [0.5, 0.75, 0.0625], [2, 0, 1]
LOGPROBS = st.lists(st.floats(-15, 0), min_size=3, max_size=3)


def test_the_metrics_are_those_computed_by_hand() -> None:
    assert off_policy_metrics(np.log(ROLLOUT), np.log(TRAINER), LENGTHS) == pytest.approx(
        {
            "policy/off_policy_kl": -(log(1) + log(3 / 2) + log(1 / 4)) / 3,
            "policy/off_policy_k3_kl": (0 + (3 / 2 - 1 - log(3 / 2)) + (1 / 4 - 1 - log(1 / 4))) / 3,
            "policy/off_policy_trainer_perplexity": (1 / sqrt(0.5 * 0.75) + 16) / 2,
            "policy/off_policy_rollout_perplexity": (2 + 4) / 2,
            "policy/off_policy_perplexity_ratio": (1 / sqrt(3 / 2) + 4) / 2,
            "policy/off_policy_chi2_token": (1 + 9 / 4 + 1 / 16) / 3 - 1,
            "policy/off_policy_chi2_sequence": (9 / 4 + 1 / 16) / 2 - 1,
            "policy/off_policy_weight_mean": (1 + 3 / 2 + 1 / 4) / 3,
            "policy/off_policy_weight_min": 1 / 4,
            "policy/off_policy_weight_max": 3 / 2,
            "policy/off_policy_weight_std": statistics.pstdev([1, 3 / 2, 1 / 4]),
            "policy/off_policy_effective_sample_size": 2.75**2 / (3 * (1 + 9 / 4 + 1 / 16)),
            "policy/off_policy_outside_fraction": 1 / 3,
            "policy/off_policy_probability_correlation": statistics.correlation(ROLLOUT, TRAINER),
        },
        abs=1e-12,
    )


@given(LOGPROBS)
def test_an_engine_that_agrees_with_the_trainer_is_not_off_policy(logprobs: list[float]) -> None:
    metrics = off_policy_metrics(logprobs, logprobs, LENGTHS)
    zero = ("kl", "k3_kl", "chi2_token", "chi2_sequence", "weight_std", "outside_fraction")
    one = ("perplexity_ratio", "weight_mean", "weight_min", "weight_max", "effective_sample_size")
    assert {metrics[f"policy/off_policy_{name}"] for name in zero} == {0.0}
    assert [metrics[f"policy/off_policy_{name}"] for name in one] == pytest.approx([1.0] * len(one))


@given(LOGPROBS, LOGPROBS)
def test_every_metric_is_finite_and_within_its_range(rollout: list[float], trainer: list[float]) -> None:
    metrics = off_policy_metrics(rollout, trainer, LENGTHS)
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["policy/off_policy_k3_kl"] >= -1e-12
    assert 0 < metrics["policy/off_policy_effective_sample_size"] <= 1 + 1e-12
    assert -1 - 1e-9 <= metrics["policy/off_policy_probability_correlation"] <= 1 + 1e-9


def test_logprobs_that_no_model_has_do_not_overflow() -> None:
    metrics = off_policy_metrics([-1e6, -1.0, -1.0], [-1.0, -1e6, -1.0], LENGTHS)
    assert np.isfinite(list(metrics.values())).all()


def test_a_logprob_that_is_not_a_number_is_outside_and_leaves_no_mean_that_looks_right() -> None:
    metrics = off_policy_metrics([-1.0, -2.0, -1.0, -1.0], [float("nan"), -2.0, -1.0, -1.0], [2, 2])
    assert metrics["policy/off_policy_outside_fraction"] == 0.25
    assert np.isnan(metrics["policy/off_policy_k3_kl"])


def test_half_of_the_tokens_without_a_weight_are_half_of_the_samples() -> None:
    assert effective_sample_size(np.array([1.0, 1.0, 0.0, 0.0])) == 0.5
    assert effective_sample_size(np.zeros(3)) == 0.0


def _call(name: str, status: CallStatus, characters: int, seconds: float = 0.0) -> ToolCall:
    return ToolCall(turn=0, name=name, arguments="{}", status=status, result="r" * characters, seconds=seconds)


def _graded(*lengths: int, **changes: Any) -> GradedTrajectory:
    """Return an attempt with samples of so many tokens, the prompt's one included; by default one of four."""
    samples = [written(range(1, length)) for length in lengths or (4,)]
    return scored(attempt(0, *samples, **changes))


def _rollouts(*graded: GradedTrajectory, several_turns: bool = True) -> Rollouts:
    return Rollouts(
        step=0,
        group_size=2,
        graded=graded,
        rewards=torch.zeros(len(graded)),
        components={},
        several_turns=several_turns,
        functions=("calculator", "search"),
    )


STEP = _rollouts(
    _graded(
        4,
        8,
        turns=4,
        stop_reason="max_turns",
        calls=(_call("calculator", "ok", 4, 0.5), _call("calculator", "failed", 0, 1.5), _call("", "undecodable", 8)),
        cached_tokens=30,
        prompt_tokens=90,
    ),
    _graded(turns=1, calls=(_call("calculator", "ok", 4),), prompt_tokens=10),
    _graded(turns=1),
    _graded(turns=9, stop_reason="excluded", calls=(_call("search", "timed_out", 400, 4.0),)),
)


def test_turns_calls_and_reasons_to_stop_are_those_computed_by_hand() -> None:
    metrics = turn_metrics(STEP)
    found = {name: value for name, value in metrics.items() if value}
    assert found == {
        "rollout/turns_mean": 2.0,
        "rollout/turns_max": 4.0,
        "rollout/samples_mean": pytest.approx(4 / 3),
        "rollout/tokens_mean": pytest.approx(16 / 3),
        "rollout/tokens_max": 8.0,
        "rollout/excluded": 1.0,
        "rollout/left_out": 1.0,
        "rollout/stop_answered_fraction": 0.5,
        "rollout/stop_max_turns_fraction": 0.25,
        "rollout/stop_excluded_fraction": 0.25,
        "tool/calls_mean": pytest.approx(4 / 3),
        CALLED: pytest.approx(2 / 3),
        "tool/result_characters_mean": 4.0,
        "tool/ok_fraction": 0.5,
        "tool/failed_fraction": 0.25,
        "tool/undecodable_fraction": 0.25,
        "tool/calls_of_calculator": 3.0,
    }
    assert metrics["tool/calls_of_search"] == metrics["tool/timed_out_fraction"] == 0.0


def test_every_step_has_the_same_figures_whatever_happened_in_it() -> None:
    nothing = turn_metrics(_rollouts(_graded(samples=(), turns=0, stop_reason="seconds")))
    assert nothing.keys() == turn_metrics(STEP).keys()
    assert {name for name, value in nothing.items() if value} == {"rollout/left_out", "rollout/stop_seconds_fraction"}


def test_seconds_and_cached_tokens_are_no_part_of_the_result() -> None:
    assert turn_timings(STEP) == {
        "rollout/cached_tokens_fraction": 0.3,
        "tool/seconds_mean": pytest.approx(6.0 / 5),
        "tool/seconds_max": 4.0,
    }
    assert not turn_metrics(STEP).keys() & turn_timings(STEP).keys()


def test_a_run_of_single_turns_has_no_such_figures() -> None:
    single = _rollouts(_graded(), several_turns=False)
    assert turn_metrics(single) == turn_timings(single) == {}


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
