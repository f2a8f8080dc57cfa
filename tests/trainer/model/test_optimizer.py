"""What is trained, and with which learning rate."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import picture_runs, vision
from torch._subclasses.fake_tensor import FakeTensorMode

from dagrpo.core.errors import UserError
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.optimizer import adamw, allocate_moments, make_optimizer, stochastically_rounded, take_step
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.trainer.state import states, tensors
from dagrpo.utils.distributed import single_process


def _moved(tmp_path: Path, training: Training) -> dict[str, float]:
    """How far each parameter goes in one step of a gradient of ones: as far as its learning rate."""
    policy = vision.policy_of("qwen2_5_vl", tmp_path, training.vision)
    optimizer = make_optimizer(policy, training)
    before = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    for parameter in policy.model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    take_step(optimizer, 0.5 * training.learning_rate)  # in the middle of the warm-up
    return {
        name: float((before[name] - parameter.detach()).abs().max())
        for name, parameter in policy.model.named_parameters()
    }


@pytest.mark.parametrize(
    ("training", "of_tower"),
    [({}, 0.005), ({"vision_learning_rate": 0.002}, 0.001), ({"vision": "frozen"}, 0.0)],
    ids=["the rate of the rest", "another rate", "frozen"],
)
def test_a_tower_has_the_learning_rate_of_the_rest_or_another_one_or_stays(
    training: dict[str, Any], of_tower: float, tmp_path: Path
) -> None:
    moved = _moved(tmp_path, Training.model_validate({"learning_rate": 0.01} | training))
    for name, value in moved.items():
        assert value == pytest.approx(of_tower if ".visual." in name else 0.005, rel=1e-4)


def test_a_tower_to_be_frozen_is_looked_for_in_the_model(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"qwen2 model, which has no vision tower to be frozen: set training\.vision"):
        load_policy(inputs[0], single_process(), "frozen")
    seeing, _ = picture_runs.make_inputs(tmp_path, "qwen3_vl")
    module = tower_module(load_policy(seeing, single_process(), "frozen").model)
    assert module is not None
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_the_optimizer_is_fused_on_a_gpu_alone_and_counts_its_steps_there() -> None:
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.empty(2, 3, device="cuda"))
        optimizer = adamw([weight], 0.0)
        room = tensors._room_for("step", torch.float32, weight, optimizer)
    assert optimizer.defaults["fused"] is True
    assert (room.device.type, room.dtype, room.shape) == ("cuda", torch.float32, ())
    weight = torch.nn.Parameter(torch.empty(2, 3))
    optimizer = adamw([weight], 0.0)
    assert optimizer.defaults["fused"] is None
    assert tensors._room_for("step", torch.float32, weight, optimizer).device.type == "cpu"


def test_a_fused_optimizer_goes_on_from_the_states_of_another(tmp_path: Path) -> None:
    """Fused on a CPU: the formula is the one of the GPU's, and the states have the same names, types and shapes."""
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    usual, fused = (
        torch.optim.AdamW(each.parameters(), fused=kind) for each, kind in zip(models, (None, True), strict=True)
    )
    models[0].weight.grad, models[0].bias.grad = torch.ones(2, 3), torch.ones(2)
    take_step(usual, 0.1)
    world = single_process()
    tensors.save(tmp_path, 1, models[0], usual, world)
    tensors.load(states.at(tmp_path, 1), models[1], fused)
    for model, optimizer in zip(models, (usual, fused), strict=True):
        model.weight.grad, model.bias.grad = torch.full((2, 3), 0.5), torch.ones(2)
        take_step(optimizer, 0.1)
    assert torch.allclose(models[0].weight, models[1].weight, rtol=0, atol=1e-6)
    assert int(fused.state[models[1].weight]["step"]) == 2


def _rounded_to(bits: int, value: float) -> float:
    """The bfloat16 number that random bits make of a float32 one, by integers."""
    whole = struct.unpack("<I", struct.pack("<f", value))[0]
    return float(struct.unpack("<f", struct.pack("<I", whole + bits & 0xFFFF0000))[0])


def test_one_update_with_rounded_moments_by_hand() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = adamw([weight], 0.0, moments=torch.bfloat16)
    weight.grad = torch.tensor([0.3, -0.5])
    take_step(optimizer, 0.1)
    # The first update goes by the learning rate, as m / (1 - 0.9) = g and v / (1 - 0.999) = g^2: of exact moments.
    assert weight.tolist() == pytest.approx([0.9, -1.9], abs=1e-6)
    first, second = optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"]
    assert (first.dtype, second.dtype) == (torch.bfloat16, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)  # of the first update
    bits = [torch.randint(1 << 16, (2,), dtype=torch.int32, generator=generator).tolist() for _ in range(2)]
    exact = [[float(torch.tensor(each)) for each in moment] for moment in ([0.03, -0.05], [0.00009, 0.00025])]
    for moment, random, values in zip((first, second), bits, exact, strict=True):
        hand = [_rounded_to(*each) for each in zip(random, values, strict=True)]
        assert moment.tolist() == pytest.approx(hand, rel=1e-6)


def test_moments_are_rounded_without_a_bias_and_numbers_of_bfloat16_stay() -> None:
    generator = torch.Generator().manual_seed(1)
    value = 1 + 1 / 512  # a quarter of the way from 1 to the next number of bfloat16, 1 + 1/128
    rounded = stochastically_rounded(torch.full((40_000,), value), generator).float()
    assert set(rounded.tolist()) == {1.0, 1 + 1 / 128}
    assert float(rounded.mean()) == pytest.approx(value, abs=4 * 3**0.5 / 512 / 200)  # 4 standard errors
    exact = torch.tensor([0.0, -0.0, 1.5, -3.0])
    assert stochastically_rounded(exact, generator).tolist() == exact.tolist()


def test_a_rounded_second_moment_falls_when_gradients_end() -> None:
    """Rounded to the nearest it would stay: an update takes a thousandth of it, less than half of its last place."""
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = adamw([weight], 0.0, moments=torch.bfloat16)
    weight.grad = torch.ones(1000)
    take_step(optimizer, 0.0)
    begun = float(optimizer.state[weight]["exp_avg_sq"].float().mean())
    for _ in range(500):
        weight.grad = torch.zeros(1000)
        take_step(optimizer, 0.0)
    assert float(optimizer.state[weight]["exp_avg_sq"].float().mean()) / begun == pytest.approx(0.999**500, rel=0.02)


def test_a_run_with_rounded_moments_goes_on_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = [torch.nn.Linear(5, 3) for _ in range(2)]
    whole, resumed = (adamw(model.parameters(), 0.01, moments=torch.bfloat16) for model in models)

    def take(steps: range, model: torch.nn.Linear, optimizer: torch.optim.AdamW) -> None:
        for step in steps:
            model(torch.full((1, 5), 0.3 * step)).square().sum().backward()
            take_step(optimizer, 0.1)

    take(range(1, 4), models[0], whole)
    tensors.save(tmp_path, 3, models[0], whole, single_process())
    take(range(4, 7), models[0], whole)
    tensors.load(states.at(tmp_path, 3), models[1], resumed)
    assert resumed.state[models[1].weight]["exp_avg"].dtype == torch.bfloat16
    take(range(4, 7), models[1], resumed)
    for name in ("weight", "bias"):
        ours, theirs = (getattr(model, name) for model in models)
        assert torch.equal(ours, theirs)
        assert torch.equal(whole.state[ours]["exp_avg_sq"], resumed.state[theirs]["exp_avg_sq"])


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
def test_moments_that_are_allocated_ahead_change_no_update(moments: torch.dtype) -> None:
    """Servers that fill the free memory of a GPU find it as it is after the first update."""
    start, gradients = torch.randn(5, 3), torch.randn(3, 5, 3)
    ends = []
    for ahead in (False, True):
        parameter = torch.nn.Parameter(start.clone())
        optimizer = adamw([parameter], 0.1, moments=moments)
        if ahead:
            allocate_moments(optimizer)
            held = {key: value.dtype for key, value in optimizer.state[parameter].items()}
        for gradient in gradients:
            parameter.grad = gradient.clone()
            take_step(optimizer, 0.01)
        ends.append(parameter.detach())
    assert torch.equal(*ends)
    assert {key: value.dtype for key, value in optimizer.state[parameter].items()} == held
    assert held == {"step": torch.float32, "exp_avg": moments, "exp_avg_sq": moments}
