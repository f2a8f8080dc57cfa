from pathlib import Path

import pytest
import torch

from dagrpo.distributed import single_process
from dagrpo.trainer import state
from dagrpo.trainer.optimizer import adamw, apply_gradients


def _trained(steps: int, model: torch.nn.Linear, optimizer: torch.optim.AdamW) -> None:
    for step in range(steps):
        model(torch.full((1, 3), float(step + 1))).sum().backward()
        apply_gradients(optimizer, 0.1, 1.0)


def _fresh() -> tuple[torch.nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, adamw(model.parameters(), 0.01)


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = _fresh()
    _trained(3, model, optimizer)
    state.save(tmp_path, 3, model, optimizer, single_process())
    _trained(2, model, optimizer)
    resumed, its_optimizer = _fresh()
    saved = state.latest(tmp_path, 99)
    assert saved is not None
    assert saved.step == 3
    state.load(saved, resumed, its_optimizer)
    _trained(2, resumed, its_optimizer)
    assert torch.equal(model.weight, resumed.weight)
    assert torch.equal(model.bias, resumed.bias)


def test_only_the_newest_two_states_are_kept(tmp_path: Path) -> None:
    model, optimizer = _fresh()
    for step in (1, 2, 3):
        state.save(tmp_path, step, model, optimizer, single_process())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00002", "step_00003"]


def test_a_half_written_state_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / ".step_00009.abc.part").mkdir(parents=True)
    (tmp_path / "step_00008").mkdir()
    assert state.latest(tmp_path, 99) is None


def test_the_state_of_another_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    model, optimizer = _fresh()
    state.save(tmp_path, 1, model, optimizer, single_process())
    other = torch.nn.Sequential(torch.nn.Linear(3, 2))
    saved = state.latest(tmp_path, 99)
    assert saved is not None
    with pytest.raises(ValueError, match="holds another model's weights: delete"):
        state.load(saved, other, adamw(other.parameters(), 0.0))


def test_a_state_of_more_steps_than_are_asked_for_is_not_taken(tmp_path: Path) -> None:
    model, optimizer = _fresh()
    for step in (2, 4):
        state.save(tmp_path, step, model, optimizer, single_process())
    assert state.latest(tmp_path, 3) == state.at(tmp_path, 2)
    assert state.latest(tmp_path, 1) is None


def test_states_of_a_longer_run_are_not_pruned_by_a_shorter_one(tmp_path: Path) -> None:
    model, optimizer = _fresh()
    state.save(tmp_path, 9, model, optimizer, single_process())
    for step in (1, 2, 3):
        state.save(tmp_path, step, model, optimizer, single_process())
    state.prune(tmp_path, 3, keep=0)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00009"]


def test_notes_are_kept_with_the_state(tmp_path: Path) -> None:
    model, optimizer = _fresh()
    state.save(tmp_path, 1, model, optimizer, single_process(), notes=[{"loss": 0.5}])
    assert state.at(tmp_path, 1).notes == [{"loss": 0.5}]
