"""Two processes that train an adapter (FSDP2, gloo) hand an engine that serves it what one process does."""

from pathlib import Path

import pytest
from tests.trainer import runs
from tests.trainer.adapter_runs import Serving, served_run

from dagrpo.checkpoints.compare import compare
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import read_parquet

pytestmark = pytest.mark.nightly

Inputs = tuple[Path, Path]


@pytest.fixture(scope="module")
def alone(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    run = served_run(inputs, tmp_path_factory.mktemp("alone"))
    runs.execute(run, Serving)
    return run


@pytest.fixture(scope="module")
def together(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """The same run by two processes, whose engine is opened twice: at the start, and again with an adapter that has learned."""
    run = served_run(inputs, tmp_path_factory.mktemp("together"))
    assert _asked(inputs, run, steps=2) == ["load step_0", "generate", "load step_1", "generate"]
    assert _asked(inputs, run, steps=4) == ["load step_2", "generate", "load step_3", "generate"]
    return run


def _asked(inputs: Inputs, run: TrainingRun, steps: int) -> list[str]:
    """Of the engine, by two processes that train to so many steps."""
    asked: list[str] = runs.launch(2, _train, inputs, run.policy.parent, steps)[0]
    return asked


def _train(world: World, inputs: Inputs, out: Path, steps: int) -> list[str]:
    return runs.execute(served_run(inputs, out, steps=steps), Serving, world)[0]


def test_the_engine_samples_from_the_policy_that_two_processes_train(together: TrainingRun) -> None:
    metrics = read_parquet(together.metrics)
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-5
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0


def test_the_rollouts_and_the_trained_policy_are_those_of_one_process(
    alone: TrainingRun, together: TrainingRun
) -> None:
    one, two = (read_parquet(run.metrics)["reward/mean"].to_pylist() for run in (alone, together))
    assert one == pytest.approx(two)
    differences = compare(alone.policy, together.policy).differences
    assert all(each.largest is not None and each.largest < 1e-3 for each in differences)
