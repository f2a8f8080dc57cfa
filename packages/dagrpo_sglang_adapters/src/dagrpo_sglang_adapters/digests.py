"""Digests of served LoRA adapters, added to SGLang's /weights_checker.

Without them a client could not verify which adapter answers it. They are of the memory that a forward pass reads, not of what was
loaded from a file: an adapter that is not there yet is put there first. Nothing here depends on the device.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

PREFIX = "base_model.model."  # of the names of modules in PEFT's files
_LIMIT = ":"  # between an adapter's name and a tensor's


def register() -> None:
    """Register the hooks, as the entry point of group sglang.srt.plugins, which SGLang calls in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    digests = AdapterDigests()
    for target, hook in (
        ("sglang.srt.model_executor.model_runner.ModelRunner.init_lora_manager", digests.remember),
        ("sglang.srt.utils.weight_checker.WeightChecker._compute_checksum", digests.add),
    ):
        HookRegistry.register(target, hook, HookType.AFTER)


class AdapterDigests:
    """Hooks that follow the creation of SGLang's LoRA manager, and its computing of digests.

    Call only while no request is running: adapters are swapped through the pool.
    """

    def __init__(self) -> None:
        self._manager: Any = None

    def remember(self, result: object, runner: Any) -> None:
        """Remember the LoRA manager after ModelRunner.init_lora_manager."""
        self._manager = runner.lora_manager

    def add(self, report: dict[str, Any], checker: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add "<adapter>:<tensor>" for each tensor of each loaded adapter, after WeightChecker._compute_checksum."""
        from sglang.srt.utils.weight_checker import _hash_tensor

        if self._manager is None:
            return report
        digests = {name: _hash_tensor(tensor) for name, tensor in _tensors(self._manager)}
        return report | {"checksums": report["checksums"] | digests}


def _tensors(manager: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of one adapter after the other, as there may be fewer slots than adapters."""
    for identifier, reference in manager.lora_refs.items():
        manager.fetch_new_loras({identifier})
        place, rank = manager.memory_pool.get_buffer_id(identifier), manager.loras[identifier].config.r
        for module, down, up in _places(manager, place, rank):
            start = f"{reference.lora_name}{_LIMIT}{PREFIX}{module}"
            yield f"{start}.lora_A.weight", down
            yield f"{start}.lora_B.weight", up


def _places(manager: Any, place: int, rank: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield each layer with A, [rank of each part, inputs], and B, [outputs, rank]; joined layers have their parts stacked."""
    from sglang.srt.lora.utils import LoRAType, get_stacked_multiply, get_target_module_name

    pool = manager.memory_pool
    for layer, modules in enumerate(manager.lora_modules):
        for module in modules:
            target = get_target_module_name(module, pool.target_modules)
            rows = rank * get_stacked_multiply(target, manager.base_model)
            down = pool.get_tensor(target, layer, LoRAType.LORA_A)[place]
            up = pool.get_tensor(target, layer, LoRAType.LORA_B)[place]
            yield module, down[:rows], up[:, :rank]
