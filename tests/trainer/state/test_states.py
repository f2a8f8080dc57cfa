import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dagrpo.checkpoints.formats import dcp
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.trainer.config.sft import MomentsDtype
from dagrpo.trainer.model.optimizer import adamw, apply_gradients, take_step
from dagrpo.trainer.state import states, tensors
from dagrpo.utils.checksummed_json import Damaged
from dagrpo.utils.distributed import single_process


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
    tensors.save(tmp_path, 3, model, optimizer, single_process())
    _trained(2, model, optimizer)
    resumed, its_optimizer = _fresh()
    saved = states.latest(tmp_path, 99)
    assert saved is not None
    assert saved.step == 3
    tensors.load(saved, resumed, its_optimizer)
    _trained(2, resumed, its_optimizer)
    assert torch.equal(model.weight, resumed.weight)
    assert torch.equal(model.bias, resumed.bias)


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_the_oldest_state_is_removed_before_the_next_is_written(
    keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present: list[list[str]] = []
    write = dcp.write_weights

    def observed(folder: Path, *rest: Any) -> Any:
        present.append(sorted(path.name for path in tmp_path.iterdir() if path != folder))
        return write(folder, *rest)

    monkeypatch.setattr(tensors, "write_weights", observed)
    model, optimizer = _fresh()
    for step in (1, 2, 3, 4):
        tensors.save(tmp_path, step, model, optimizer, single_process(), keep=keep)
    most = max(keep, 2) - 1
    assert present == [[f"step_{step:05d}" for step in (1, 2, 3)[:number][-most:]] for number in range(4)]


def test_a_run_that_is_killed_while_it_writes_goes_on_from_the_state_before(tmp_path: Path) -> None:
    _saved(tmp_path, 1, 2)
    if (child := os.fork()) == 0:
        pytest.MonkeyPatch().setattr(tensors, "write_weights", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        _saved(tmp_path, 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = [path.name.split(".")[0] or "unfinished" for path in sorted(tmp_path.iterdir())]
    assert left == ["unfinished", "step_00002"]
    assert states.latest(tmp_path, 99) == states.at(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00002"]  # an unfinished one takes no room for long


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_the_bytes_of_a_state_grow_as_the_model(moments: MomentsDtype, tmp_path: Path) -> None:
    for width in (64, 128, 256):
        model = torch.nn.Linear(width, width, bias=False)
        optimizer = adamw(model.parameters(), 0.0, moments=NAMED_DTYPES[moments])
        model.weight.grad = torch.ones_like(model.weight)
        take_step(optimizer, 0.1)
        tensors.save(tmp_path / str(width), 1, model, optimizer, single_process())
        written = sum(path.stat().st_size for path in (tmp_path / str(width)).rglob("*.safetensors"))
        expected = tensors.state_bytes(width * width, moments)
        assert expected == width * width * {"float32": 12, "bfloat16": 8}[moments]
        assert 0 < written - expected < 1000  # headers


def test_the_state_of_another_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    _saved(tmp_path, 1)
    other = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with pytest.raises(ValueError, match="holds another model's weights: delete"):
        tensors.load(states.at(tmp_path, 1), other, adamw(other.parameters(), 0.0))


def test_a_state_of_more_steps_than_are_asked_for_is_neither_taken_nor_pruned(tmp_path: Path) -> None:
    _saved(tmp_path, 2, 4)
    assert states.latest(tmp_path, 3) == states.at(tmp_path, 2)
    assert states.latest(tmp_path, 1) is None
    states.prune(tmp_path, 3, keep=0)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00004"]


def _saved(root: Path, *steps: int) -> None:
    model, optimizer = _fresh()
    for step in steps:
        _trained(1, model, optimizer)
        tensors.save(root, step, model, optimizer, single_process())


def _weights(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def _copy_a_batch(folder: Path) -> None:
    folder.mkdir()
    (folder / "step_00009.parquet").write_bytes(b"")


def _edit(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"notes": "others"}))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "is changed (its sha256 is not that of what was written)": lambda folder: _flip_a_byte(_weights(folder)),
    "bytes, and": lambda folder: _weights(folder).write_bytes(_weights(folder).read_bytes()[:-1]),
    "safetensors is missing": lambda folder: _weights(folder).unlink(),
    "does not belong there": lambda folder: (folder / "shard-00009.safetensors").write_bytes(b""),
    "00009.parquet does not belong there": lambda folder: _copy_a_batch(folder / "ahead"),
    "state.json is missing": lambda folder: (folder / "state.json").unlink(),
    "state.json is damaged": _edit,
    "state.json is of step": lambda folder: (folder / "state.json").write_bytes(
        (folder.with_name("step_00002") / "state.json").read_bytes()
    ),
}


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_damaged_state_is_set_aside_and_the_one_before_is_taken(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    _saved(tmp_path, 2, 4)
    DAMAGES[fault](tmp_path / "step_00004")
    assert states.nearest(tmp_path, 9) == states.at(tmp_path, 2), "a reader, which sets nothing aside"
    model, optimizer = _fresh()
    assert tensors.resume(tmp_path, 9, model, optimizer, single_process()) == 2
    told = capsys.readouterr().err.splitlines()[0]
    assert told in caplog.text
    assert fault in told
    assert told.startswith("The state of step 4 cannot be used, as ")
    assert told.endswith(f"it is kept as {tmp_path / 'damaged_step_00004_1'}, and the run goes on from step 2.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged_step_00004_1", "step_00002"]


def test_with_no_whole_state_a_run_starts_from_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # what was set aside before stays
        _saved(tmp_path, 1, 2)
        for name in ("step_00001", "step_00002"):
            _flip_a_byte(_weights(tmp_path / name))
        assert tensors.resume(tmp_path, 9, *_fresh(), single_process()) == 0
    assert capsys.readouterr().err.count("and the run starts from its first step.") == 4
    assert len(list(tmp_path.glob("damaged_step_0000?_?"))) == 4


def test_a_state_whose_steps_are_not_on_record_is_not_gone_on_from(tmp_path: Path) -> None:
    def recorded(step: int) -> None:
        if step > 2:
            raise Damaged(Path("metrics/step_00003.json"), "is missing")

    _saved(tmp_path, 2, 4)
    assert states.latest(tmp_path, 9, recorded) == states.at(tmp_path, 2)


def test_a_state_that_was_being_removed_when_the_run_was_killed_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _saved(tmp_path, 1, 2)
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda folder: (folder / "state.json").unlink())
        states.prune(tmp_path, 2, keep=0)
    assert states.latest(tmp_path, 9) is None
    assert capsys.readouterr().err == ""
    states.prune(tmp_path, 2, keep=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["step_000001", "step_٠٠٠٠١", "step_00001 ", "step_x", "step_00003.old", "step_3"])
def test_a_folder_that_is_not_named_as_we_name_them_is_no_state(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert states.latest(tmp_path, 99) is None
    assert (tmp_path / name).is_dir()


def test_a_state_is_set_aside_under_a_name_that_nothing_has(tmp_path: Path) -> None:
    (tmp_path / "step_00001").mkdir()
    (tmp_path / "damaged_step_00001_1").symlink_to("nowhere")
    assert states.latest(tmp_path, 99) is None
    assert (tmp_path / "damaged_step_00001_2").is_dir()


def test_a_link_in_a_states_place_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    root, theirs = tmp_path / "state", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "precious").write_text("precious")
    for step in (2, 3):
        (root / f"step_{step:05d}").mkdir(parents=True)
    (root / "step_00001").symlink_to(theirs)
    states.prune(root, 9, 2)
    assert sorted(path.name for path in root.iterdir()) == ["step_00002", "step_00003"]
    assert (theirs / "precious").exists()
