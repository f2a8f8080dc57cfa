"""A run that is told to stop saves the steps that it has finished, and the next one leaves the bytes of a whole run."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.everyday import everyday
from tests.trainer import runs

from dagrpo.checkpoints.compare import compare
from dagrpo.core.errors import Terminated
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.shutdown import Shutdown
from dagrpo.utils.distributed import World, single_process

pytestmark = pytest.mark.usefixtures("stage_handlers")
Inputs = tuple[Path, Path]


@pytest.fixture(scope="module")
def whole(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Four steps without an interruption."""
    out = tmp_path_factory.mktemp("whole")
    run = runs.training_run(inputs, out / "state", out, steps=4, save_every=100)
    runs.execute(run)
    return run


def _states(run: TrainingRun) -> list[str]:
    """Everything in the folder of states that is one, or was to be one."""
    return sorted(path.name for path in run.state.iterdir() if "step_" in path.name)


class ToldWhileSampling(runs.ScriptedEngine):
    """An engine in whose third step the run is told to stop."""

    def generate(self, requests: Sequence[SamplingRequest], **how: Any) -> list[Completion]:
        if self.version == "step_2" and requests[0].temperature > 0:  # no probe, which begins with greedy requests
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return super().generate(requests, **how)


def test_sampling_is_broken_off_and_the_steps_before_it_are_saved(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4, save_every=100)
    with pytest.raises(Terminated):
        runs.execute(run, ToldWhileSampling)
    assert _states(run) == ["step_00002"]
    asked, _ = runs.execute(run)
    assert asked == ["load step_2", "generate", "load step_3", "generate"]
    assert runs.bytes_of(run) == runs.bytes_of(whole)


@pytest.mark.parametrize(
    ("number", "raised"),
    everyday([(signal.SIGTERM, Terminated)], [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]),
)
def test_a_step_that_is_computed_is_finished_and_saved(
    number: signal.Signals, raised: type[BaseException], inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4, save_every=100)

    def stop(step: int) -> bool:  # asked where the step is recorded: its update is done, its state is not saved
        if step == 3:
            os.kill(os.getpid(), number)
        return False

    with pytest.raises(raised):
        runs.execute(run, stop=stop)
    assert _states(run) == ["step_00003"]
    asked, _ = runs.execute(run)
    assert asked == ["load step_3", "generate"]
    assert runs.bytes_of(run) == runs.bytes_of(whole)


def test_what_takes_longer_than_the_grace_time_is_abandoned_and_nothing_is_half_written(
    inputs: Inputs, tmp_path: Path
) -> None:
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=4)
    run = runs.changed(run, runtime={"grace_seconds": 0.05})

    def stop(step: int) -> bool:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return False

    with pytest.raises(Terminated):
        runs.execute(run, stop=stop)
    assert _states(run) == ["step_00002"]  # by runtime.training.save_every
    assert runs.execute(run)[0][0] == "load step_2"


@pytest.mark.parametrize(
    ("second", "reached"),
    [
        (signal.SIGINT, ["the update goes on"]),
        (
            signal.SIGTERM,
            ["the update goes on", "and on"],
        ),  # as the workflow sends it to stages that have not ended yet
    ],
)
def test_a_second_interrupt_ends_at_once_and_a_signal_of_another_kind_is_no_impatience(
    second: signal.Signals, reached: list[str]
) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), Shutdown(1000, single_process()).listening():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the update goes on")
        os.kill(os.getpid(), second)
        done.append("and on")
    assert done == reached


def _sample(shutdown: Shutdown, work: Callable[[], object]) -> None:
    """Work as the source of rollouts does."""
    with shutdown.interruptible() as is_allowed:
        if is_allowed:
            work()


class NoSignalOnRankZero(World):
    """As another rank sees it."""

    def broadcast(self, value: Any = None) -> Any:
        return 0, False


def _fail() -> None:
    raise OSError("no server")


def _fail_when_interrupted() -> None:
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        _fail()


def test_sampling_that_fails_by_itself_is_not_taken_for_a_stop() -> None:
    with pytest.raises(OSError, match="no server"), Shutdown(1000, single_process()).listening() as shutdown:
        _sample(shutdown, _fail)


def test_what_fails_after_the_signal_does_not_hide_it_and_nothing_is_begun() -> None:
    with pytest.raises(KeyboardInterrupt), Shutdown(1000, single_process()).listening() as shutdown:
        _sample(shutdown, _fail_when_interrupted)
        assert shutdown.requested()
    with pytest.raises(KeyboardInterrupt), Shutdown(1000, single_process()).listening() as shutdown:
        os.kill(os.getpid(), signal.SIGINT)
        _sample(shutdown, _fail)
        _fail()


def test_a_signal_that_reached_another_rank_alone_is_called_off() -> None:
    with Shutdown(1000, NoSignalOnRankZero(rank=1, size=2, device=torch.device("cpu"))).listening() as shutdown:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        assert not shutdown.requested()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.nightly
def test_two_processes_that_are_told_to_stop_save_together_and_go_on_together(inputs: Inputs, tmp_path: Path) -> None:
    runs.launch(2, runs.__file__, *inputs, tmp_path / "whole", 2)
    arguments = [*inputs, tmp_path / "stopped", 2, "stopped_in_step_2"]
    runs.launch(2, runs.__file__, *arguments, told_to_stop_by=tmp_path / "stopped" / "sampling")
    states = tmp_path / "stopped" / "state"
    assert sorted(path.name for path in states.glob("*step_*")) == ["step_00001"]
    runs.launch(2, runs.__file__, *inputs, tmp_path / "stopped", 2)
    one, other = (tmp_path / name / "policy" for name in ("whole", "stopped"))
    assert compare(one, other).differences == ()
