"""The layout is the same in every rank, and a user is told why sequences are padded that might have been packed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.trainer import runs
from tests.trainer.in_double import SIZES
from transformers import (
    DeepseekV3Config,
    Gemma4TextConfig,
    GPT2Config,
    MambaConfig,
    MambaForCausalLM,
    PretrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from dagrpo.core.errors import UserError
from dagrpo.trainer.config.runtime import Layout, TrainingRuntime
from dagrpo.trainer.model import attention
from dagrpo.trainer.model import prepare as gate
from dagrpo.trainer.model.attention import head_sizes, is_packed_by_kernel
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.prepare import prepare_layout, resolve_budget
from dagrpo.utils.distributed import World, single_process

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideAnother(World):
    """Rank 0 of two. The other one's answers, in the order in which it is asked."""

    others: list[float]

    def all_reduce(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.others.pop(0)


def _beside(*others: float) -> BesideAnother:
    return BesideAnother(rank=0, size=2, device=CPU, others=[*others])


def _qwen2(attention: str = "sdpa") -> Policy:
    return Policy(Qwen2ForCausalLM._from_config(Qwen2Config(**SIZES), attn_implementation=attention).eval())


@pytest.mark.parametrize(
    ("others", "layout"),
    [((1.0, 1.0), "packed"), ((1.0, 0.0), "padded"), ((0.0,), "padded")],
    ids=["both", "the other one measures a difference", "the other one's device is faster with padded sequences"],
)
def test_sequences_are_packed_only_if_every_rank_says_so(others: tuple[float, ...], layout: Layout) -> None:
    policy, world = _qwen2(), _beside(*others)
    assert prepare_layout(policy, None, world) == layout
    assert policy.model.config._attn_implementation == ("dagrpo_packed" if layout == "packed" else "sdpa")
    assert world.others == []


def test_every_rank_refuses_a_layout_that_one_of_them_cannot_compute() -> None:
    with pytest.raises(UserError, match=r"another process computes other logprobs .* set layout to padded or null"):
        prepare_layout(_qwen2(), "packed", _beside(1.0, 0.0))


def _measure_unlike_numbers(world: World, initial: Path) -> list[str]:
    """Return the layouts of ranks that measure alike, of which rank 1 finds a difference, and of which it finds a leak."""
    policy, change = load_policy(initial, world), gate._change
    layouts: list[str] = [prepare_layout(policy, None, world)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "MOST_NATS", gate.MOST_NATS if world.is_rank_zero else -1.0)
        layouts.append(prepare_layout(policy, None, world))
        with pytest.raises(UserError, match=r"set runtime.training.share_prompts to false\.$"):
            resolve_budget(TrainingRuntime(share_prompts=True), policy, world)
    with pytest.MonkeyPatch.context() as patch:
        added = 0.0 if world.is_rank_zero else 1.0
        patch.setattr(gate, "_change", lambda *given, **options: change(*given, **options) + added)
        layouts.append(prepare_layout(policy, None, world))
    return layouts


@pytest.mark.nightly
def test_ranks_that_measure_unlike_numbers_take_as_many_forward_passes_and_agree(inputs: tuple[Path, Path]) -> None:
    """Two processes that share a policy. With fewer passes in one of them the other would wait for ever."""
    assert runs.launch(2, _measure_unlike_numbers, inputs[0]) == [["packed", "padded", "padded"]] * 2


def test_rank_zero_says_once_why_sequences_are_padded_unless_that_was_asked_for_or_is_always_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = BesideAnother(rank=1, size=2, device=CPU, others=[1.0])
    mamba = Policy(MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)))
    cases: list[tuple[Policy, Literal["padded"] | None, World]] = [
        (_qwen2("eager"), None, other),
        (_qwen2("eager"), "padded", single_process()),
        (mamba, None, single_process()),
    ]
    for policy, asked, world in cases:
        assert prepare_layout(policy, asked, world, section="runtime.sft") == "padded"
    assert capsys.readouterr().err == ""
    assert prepare_layout(_qwen2("eager"), None, _beside(1.0), section="runtime.sft") == "padded"
    assert capsys.readouterr().err == (
        "Sequences of this qwen2 model are padded, not packed (runtime.sft.layout: null): it attends by `eager`, which cannot be "
        "replaced.\n"
    )


def test_a_mixture_of_experts_is_packed_although_a_neighbour_changes_how_its_products_are_rounded() -> None:
    """An expert's product with other tokens of the row beside one's own is rounded otherwise: no leak."""
    torch.manual_seed(0)
    experts = {"hidden_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES | experts)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    policy = Policy(model)
    assert prepare_layout(policy, None, single_process()) == "packed"
    with torch.no_grad():
        changes = [float(gate._change(policy, share_prompts=share)) for share in (False, True)]
    assert 0 < max(changes) < 1e-5


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (GPT2Config(n_embd=60, n_head=5), (12, 12)),  # the width over the heads
        (DeepseekV3Config(), (192, 128)),  # 128 and 64 with positions; values of 128
        (MambaConfig(), (0, 0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_sizes_of_heads_are_those_of_the_configuration(config: PretrainedConfig, sizes: tuple[int, int]) -> None:
    assert head_sizes(config) == sizes


@pytest.mark.parametrize(
    ("config", "dtype", "is_by_kernel"),
    [
        ({"head_dim": 128}, torch.bfloat16, True),
        ({"head_dim": 256}, torch.float16, True),
        ({"head_dim": 264}, torch.bfloat16, False),
        ({"head_dim": 12}, torch.bfloat16, False),
        ({"head_dim": 128}, torch.float32, False),
        ({"head_dim": 128, "v_head_dim": 64}, torch.bfloat16, False),
    ],
)
def test_a_gpu_packs_by_default_only_heads_that_fit_its_kernel(
    config: dict[str, int], dtype: torch.dtype, is_by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "has_kernels", lambda device: True)
    assert is_packed_by_kernel(Qwen2Config(**SIZES | config), dtype, CPU) is is_by_kernel


def test_heads_that_differ_from_layer_to_layer_do_not_fit() -> None:
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma4TextConfig(**SIZES | {"head_dim": 8}, global_head_dim=16, layer_types=kinds)
    assert not is_packed_by_kernel(config, torch.bfloat16, CPU)


def refusal(model: Any) -> str:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    with pytest.raises(UserError) as refused:
        prepare_layout(Policy(model.eval()), "packed", single_process(), section="runtime.sft")
    return str(refused.value)


def test_it_names_the_key_the_reason_and_the_remedy() -> None:
    model = Qwen2ForCausalLM._from_config(Qwen2Config(**SIZES), attn_implementation="eager")
    assert refusal(model) == (
        "runtime.sft.layout is packed, but this qwen2 model cannot compute sequences end to end in one row: it attends by `eager`, "
        "which cannot be replaced; set layout to padded or null."
    )


def test_it_tells_the_measured_difference_and_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention._by_length
    monkeypatch.setattr(attention, "_by_length", lambda *inputs: 1.5 * whole(*inputs))
    told = refusal(Qwen2ForCausalLM(Qwen2Config(**SIZES)))
    assert " nats from those of padded sequences, and rounding in float32 explains at most 0.001; set layout" in told
    assert float(told.split("differ by up to ")[1].split()[0]) > gate.MOST_NATS
