"""An adapter is trained on rollouts of the real server, which holds the merged weights; interrupted or not, to the bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer import adapter_runs, runs
from tests.trainer.lending import lending

from dagrpo.checkpoints.compare import compare
from dagrpo.files import read_parquet
from dagrpo.params.algorithm import Algorithm
from dagrpo.params.runtime import Engine
from dagrpo.rollout.engine.interface import EngineOpener
from dagrpo.rollout.engine.open import open_engine
from dagrpo.trainer.gates.hand_over import COMPARED
from dagrpo.trainer.gates.probe import LARGEST, OUTSIDE
from dagrpo.trainer.run import TrainingRun

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def opener(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineOpener]:
    """Opens one server, which every run uses in turn: each loads its own weights first."""
    log = tmp_path_factory.mktemp("logs") / "server.log"
    params = Engine(start_timeout=240, request_timeout=120)
    with open_engine(inputs[0], params, log, dtype="float32", deterministic=True) as pool:
        yield lending(pool)
    torch.use_deterministic_algorithms(False)


def _run(inputs: tuple[Path, Path], out: Path) -> TrainingRun:
    """A fresh model's attempts are all equally bad: the entropy's term has a gradient none the less."""
    run = adapter_runs.with_adapter(runs.training_run(inputs, out / "state", out, 3))
    terms = {"terms": {"entropy": {"coefficient": 0.1}}}
    return replace(run, algorithm=Algorithm.model_validate(run.algorithm.model_dump() | terms))


def test_a_run_learns_is_checked_at_every_hand_over_and_is_the_same_after_an_interruption(
    inputs: tuple[Path, Path], opener: EngineOpener, tmp_path: Path
) -> None:
    whole, halved = (_run(inputs, tmp_path / name) for name in ("whole", "halved"))
    reported = runs.metrics_with(whole, opener)
    assert [metrics[OUTSIDE] for metrics in reported] == [0.0] * 3
    assert all(metrics[LARGEST] < 1e-3 and metrics[COMPARED] > 0 for metrics in reported)
    assert min(read_parquet(whole.metrics)["policy/grad_norm"].to_pylist()) > 0
    assert len({each.name for each in compare(whole.initial, whole.policy).differences if each.largest}) == 14
    assert len(runs.metrics_with(halved, opener, stop=lambda step: step == 3)) == 3
    assert not halved.policy.exists()
    runs.metrics_with(halved, opener)
    assert runs.bytes_of(halved) == runs.bytes_of(whole)
