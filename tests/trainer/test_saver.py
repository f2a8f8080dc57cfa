"""When states are written, and beside what."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer import runs

from dagrpo.checkpoints.formats import dcp
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.errors import ServerError
from dagrpo.trainer import saver
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state import states, tensors
from dagrpo.utils.distributed import single_process

Inputs = tuple[Path, Path]


def _run(inputs: Inputs, folder: Path, steps: int = 2) -> TrainingRun:
    return runs.training_run(inputs, folder / "state", folder, steps=steps, save_every=1, keep_states=2)


def _bytes(run: TrainingRun) -> dict[str, bytes]:
    return {str(path.relative_to(run.state)): path.read_bytes() for path in run.state.glob("step_*/*")}


def test_a_state_is_written_while_the_next_step_is_sampled_and_before_its_update(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _run(inputs, tmp_path / "plain")
    runs.execute(plain)
    sampled, order, write = threading.Event(), list[str](), dcp.write_weights

    class Noting(runs.ScriptedEngine):
        def generate(self, requests: Sequence[SamplingRequest], **rest: Any) -> list[Completion]:
            completions = super().generate(requests, **rest)
            if self.asked[-2:] == ["load step_1", "generate"]:
                order.append("sampled")
                sampled.set()
            return completions

    def late(*given: Any) -> Any:
        assert sampled.wait(60), "the run waited for its state before it sampled"
        threading.Event().wait(0.2)  # as long as an update
        order.append("written")
        return write(*given)

    monkeypatch.setattr(tensors, "write_weights", late)
    run = _run(inputs, tmp_path / "late")
    runs.execute(run, Noting)
    assert order == ["sampled", "written", "written"]
    assert len(_bytes(plain)) == 4
    assert _bytes(run) == _bytes(plain)


@pytest.mark.nightly
def test_a_state_that_cannot_be_written_ends_the_run_which_goes_on_from_the_one_before(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = _run(inputs, tmp_path / "whole"), _run(inputs, tmp_path / "full")
    runs.execute(whole)
    write, calls = dcp.write_weights, list[Path]()

    def full(folder: Path, *given: Any) -> Any:
        calls.append(folder)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(folder))
        return write(folder, *given)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(tensors, "write_weights", full)
        runs.execute(run)
    assert [path.name for path in run.state.glob("*step_*")] == ["step_00001"]
    assert runs.execute(run)[0] == ["load step_1", "generate"]
    assert runs.bytes_of(run) == runs.bytes_of(whole)


def test_an_engine_that_fails_beside_a_state_that_cannot_be_written_is_the_runs_error(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, has_failed = _run(inputs, tmp_path), threading.Event()

    class Failing(runs.ScriptedEngine):
        def generate(self, requests: Sequence[SamplingRequest], **rest: Any) -> list[Completion]:
            if self.version == "step_1" and requests[0].temperature > 0:
                has_failed.set()
                raise ServerError("the server died")
            return super().generate(requests, **rest)

    def full(folder: Path, *given: Any) -> Any:
        assert has_failed.wait(60)
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(tensors, "write_weights", full)
    with pytest.raises(ServerError, match="the server died"):
        runs.execute(run, Failing)
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    ("minutes", "saved"), [(None, [5, 10, 12]), (5.0, [3, 5, 8, 10, 12]), (0.1, [*range(1, 13)]), (60.0, [5, 10, 12])]
)
def test_states_are_saved_by_time_as_well(
    minutes: float | None, saved: list[int], inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of two minutes: five minutes after a state are over after three steps."""
    written: list[int] = []
    monkeypatch.setattr(tensors, "save", lambda root, step, *rest: written.append(step))
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=12, save_every=5, save_every_minutes=minutes)
    named: Any = {"model": None, "optimizer": None, "base": None, "checks": SimpleNamespace(saved={})}
    named |= {
        "keeper": SimpleNamespace(is_due=lambda finished: False),
        "source": SimpleNamespace(end=lambda finished: ({}, None)),
        "update": SimpleNamespace(saved={}),
    }
    seconds = 0.0
    own = saver.Saver(run=run, saved=0, clock=Clock(), world=single_process(), now=lambda: seconds, **named)
    with own:
        for step in range(1, 13):
            seconds += 120
            own.save_if_due(step)
    assert written == saved


def test_a_state_is_not_recorded_before_it_is_whole(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write, seen = _run(inputs, tmp_path), dcp.write_weights, list[states.SavedState | None]()

    def observed(*given: Any) -> Any:
        entries = write(*given)
        seen.append(states.nearest(run.state, 99))
        return entries

    monkeypatch.setattr(tensors, "write_weights", observed)
    runs.execute(run)
    assert seen == [None, states.at(run.state, 1)]
