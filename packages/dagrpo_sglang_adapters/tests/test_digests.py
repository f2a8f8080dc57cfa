"""Digests of served adapters, by stand-ins for SGLang's objects; tests/engine compares those of a real server."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from dagrpo_sglang_adapters.digests import AdapterDigests
from torch import Tensor

TOLD: dict[str, Any] = {"checksums": {"model.norm.weight": "1"}, "per_gpu_checksum": "2"}


class Pool:
    """Room for one adapter of up to rank 3, in one layer of 2 inputs and 4 outputs that joins three others."""

    target_modules = frozenset({"qkv_proj"})

    def __init__(self) -> None:
        self.memory = {"A": torch.zeros(1, 9, 2), "B": torch.zeros(1, 4, 3)}

    def get_buffer_id(self, identifier: str) -> int:
        return 0

    def get_tensor(self, target: str, layer: int, which: str) -> Tensor:
        assert (target, layer) == ("qkv_proj", 0)
        return self.memory[which]


class Manager:
    """Puts an adapter into memory when it is asked for: all of it is its rank."""

    base_model = None

    def __init__(self, **ranks: int) -> None:
        self.lora_refs = {f"id-{name}": SimpleNamespace(lora_name=name) for name in ranks}
        self.loras = {f"id-{name}": SimpleNamespace(config=SimpleNamespace(r=rank)) for name, rank in ranks.items()}
        self.memory_pool = Pool()
        self.lora_modules = [{"model.layers.0.self_attn.qkv_proj": None}]

    def fetch_new_loras(self, identifiers: set[str]) -> None:
        (identifier,) = identifiers
        for tensor in self.memory_pool.memory.values():
            tensor.fill_(self.loras[identifier].config.r)


@pytest.fixture(autouse=True)
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hook takes from SGLang; a digest says what it is of."""

    def module(name: str, **members: Any) -> None:
        made = ModuleType(name)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)

    for package in ("sglang", "sglang.srt", "sglang.srt.lora", "sglang.srt.utils"):
        module(package)
    module(
        "sglang.srt.lora.utils",
        LoRAType=SimpleNamespace(LORA_A="A", LORA_B="B"),
        get_stacked_multiply=lambda target, model: 3,
        get_target_module_name=lambda name, targets: name.rpartition(".")[2],
    )
    module(
        "sglang.srt.utils.weight_checker", _hash_tensor=lambda t: f"{t.shape[0]}x{t.shape[1]} of {t.unique().tolist()}"
    )


def digests_of(manager: Manager | None) -> dict[str, str]:
    digests = AdapterDigests()
    if manager is not None:
        digests.remember(None, SimpleNamespace(lora_manager=manager))
    told = digests.add(TOLD, None, role="target")
    assert told["per_gpu_checksum"] == "2"
    checksums: dict[str, str] = dict(told["checksums"])
    assert checksums.pop("model.norm.weight") == "1"
    return checksums


def test_a_server_without_adapters_reports_what_it_has_reported_before() -> None:
    assert digests_of(None) == digests_of(Manager()) == {}
    assert TOLD["checksums"] == {"model.norm.weight": "1"}


def test_each_adapter_is_reported_by_its_name_as_wide_as_its_rank_from_the_memory_that_it_shares() -> None:
    start = "base_model.model.model.layers.0.self_attn.qkv_proj"
    assert digests_of(Manager(one=3, other=2)) == {
        f"one:{start}.lora_A.weight": "9x2 of [3.0]",
        f"one:{start}.lora_B.weight": "4x3 of [3.0]",
        f"other:{start}.lora_A.weight": "6x2 of [2.0]",
        f"other:{start}.lora_B.weight": "4x2 of [2.0]",
    }
