"""A model that certainly has no room is refused before it is loaded; whatever else may not fit is not."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import parameter_count
from dagrpo.core.errors import UserError
from dagrpo.trainer.config.lora import TrainedLora
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model import memory
from dagrpo.utils.distributed import single_process


def _machine_with(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_of_machine", lambda: count)


def test_weights_gradients_and_states_have_to_fit(inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 16 * parameter_count(open_tensors(inputs[0]))
    _machine_with(needed, monkeypatch)
    memory.require_room(inputs[0], "training", Training(), single_process())
    _machine_with(needed - 1, monkeypatch)
    with pytest.raises(UserError, match=r"\(training\.lora\.rank\) or choose a smaller model; `dagrpo"):
        memory.require_room(inputs[0], "training", Training(), single_process())
    with pytest.raises(UserError, match=r"sft\.lora\.rank"):
        memory.require_room(inputs[0], "sft", Sft(), single_process())


def test_beside_an_adapter_only_the_weights_are_certain(
    inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 4 * parameter_count(open_tensors(inputs[0]))
    _machine_with(needed, monkeypatch)
    memory.require_room(inputs[0], "training", Training(lora=TrainedLora(rank=4)), single_process())
    _machine_with(needed - 1, monkeypatch)
    with pytest.raises(UserError, match=r"the weights of [0-9,]+ parameters take .*: choose a smaller model"):
        memory.require_room(inputs[0], "training", Training(lora=TrainedLora(rank=4)), single_process())


def test_processes_on_gpus_share_what_each_has_to_hold(
    inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 16 * parameter_count(open_tensors(inputs[0]))
    device = SimpleNamespace(total_memory=needed // 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device_of_rank: device)
    world = replace(single_process(), size=2, device=torch.device("cuda"))
    memory.require_room(inputs[0], "training", Training(), world)
    with pytest.raises(UserError, match=r"raise runtime\.training\.processes \(it is 1\) or choose"):
        memory.require_room(inputs[0], "training", Training(), replace(world, size=1))
