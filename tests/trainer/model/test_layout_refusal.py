"""What is said of a model whose sequences cannot be packed: what was measured, what was allowed, and what to set."""

from typing import Any

import pytest
import torch
from tests.trainer.in_double import SIZES
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.core.errors import UserError
from dagrpo.trainer.model import attention
from dagrpo.trainer.model import prepare as gate
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.prepare import prepare_layout
from dagrpo.utils.distributed import single_process


def refusal(model: Any, section: str = "runtime.training") -> str:
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    with pytest.raises(UserError) as refused:
        prepare_layout(Policy(model.eval()), "packed", single_process(), section=section)
    return str(refused.value)


@pytest.mark.parametrize("section", ["runtime.training", "runtime.sft"])
def test_it_names_the_key_the_reason_and_the_remedy(section: str) -> None:
    model = Qwen2ForCausalLM._from_config(Qwen2Config(**SIZES), attn_implementation="eager")
    assert refusal(model, section) == (
        f"{section}.layout is packed, but this qwen2 model cannot compute sequences end to end in one row: it attends by `eager`, "
        "which cannot be replaced; set layout to padded or null."
    )


def test_it_tells_the_measured_difference_and_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention._by_length
    monkeypatch.setattr(attention, "_by_length", lambda *inputs: 1.5 * whole(*inputs))
    told = refusal(Qwen2ForCausalLM(Qwen2Config(**SIZES)))
    assert " nats from those of padded sequences, and rounding in float32 explains at most 0.001; set layout" in told
    assert float(told.split("differ by up to ")[1].split()[0]) > gate.MOST_NATS


def test_it_tells_of_a_leak_between_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention._by_length
    monkeypatch.setattr(
        attention,
        "_by_length",
        lambda module, of_row, *inputs: whole(module, of_row, *inputs) + of_row[2].mean(),
    )
    monkeypatch.setattr(gate, "MOST_NATS", 100.0)
    told = refusal(Qwen2ForCausalLM(Qwen2Config(**SIZES)))
    assert "when another sequence in the row changes; they must not change at all" in told
