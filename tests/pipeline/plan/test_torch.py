"""What the plan takes from inside torch, which may change with any version of it."""

import importlib
from typing import Any

import pytest
import torch
from torch.utils import checkpoint

from dagrpo.pipeline.plan.stand_in import StandIn

PRIVATE = {
    "torch.autograd.graph": ("_engine_run_backward", "pipeline/plan/stand_in.py"),
    "torch._C": ("DisableTorchFunction", "pipeline/plan/live_bytes.py"),
    "torch.utils.checkpoint": ("_allowed_determinism_checks_to_fns", "pipeline/plan/activations.py"),
    "torch.utils._python_dispatch": ("TorchDispatchMode", "pipeline/plan/live_bytes.py"),
    "torch.utils._pytree": ("tree_map", "pipeline/plan/live_bytes.py"),
}
ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)


@pytest.mark.parametrize("module", PRIVATE)
def test_torch_has_the_private_names_that_a_plan_is_counted_with(module: str) -> None:
    name, user = PRIVATE[module]
    assert hasattr(importlib.import_module(module), name), (
        f"torch {torch.__version__} has no {module}.{name} any more: change src/dagrpo/{user}, which runs with it"
    )


@pytest.mark.parametrize("name", ATTENTION)
def test_torch_has_the_attention_kernels_that_a_plan_is_counted_with(name: str) -> None:
    assert hasattr(torch.ops.aten, name), (
        f"torch {torch.__version__} has no aten::{name} any more: change StandIn in src/dagrpo/pipeline/plan/stand_in.py"
    )


def test_checks_of_recomputation_can_be_turned_off() -> None:
    assert {"default", "none"} <= checkpoint._allowed_determinism_checks_to_fns.keys(), (
        f"torch {torch.__version__} names checks of recomputation otherwise: change _checks_of_recomputation_off in "
        "src/dagrpo/pipeline/plan/activations.py"
    )


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_tensor_without_values_stands_for_one_of_another_device_and_is_differentiated(device: str) -> None:
    """As the trainer sees it: the device of a tensor, of one made from it, and of its gradient."""
    weight: Any = torch.empty(3, 4, device="meta", requires_grad=True)
    changed = f"torch {torch.__version__} calls functions of a mode otherwise: change StandIn in src/dagrpo/pipeline/plan/stand_in.py"
    with StandIn(torch.device(device)):
        made = torch.ones(3, device=device)
        assert str(weight.device) == str(made.device) == device, changed
        (weight.sum(dim=1) * made).sum().backward()
        assert str(weight.grad.device) == device, changed
    assert weight.device.type == weight.grad.device.type == "meta"
