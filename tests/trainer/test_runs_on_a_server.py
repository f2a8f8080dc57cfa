"""Runs of the trainer on one real server: ahead of the policy, with an adapter, interrupted and stopped."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import adapter_runs, runs
from tests.trainer.lending import lending

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.compare import compare
from dagrpo.core.errors import Terminated
from dagrpo.engine import sglang
from dagrpo.engine.interface import EngineOpener
from dagrpo.engine.sglang.connect import open_sglang
from dagrpo.trainer.checks.probe import LARGEST, OUTSIDE
from dagrpo.trainer.checks.weight_sync import COMPARED
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.tables import read_parquet

pytestmark = pytest.mark.server


@contextmanager
def _server(model: Path, log: Path) -> Iterator[EngineOpener]:
    """Start a server that several runs use in turn: each loads its own weights first."""
    params = sglang.Config(start_timeout=240, request_timeout=120)
    with open_sglang(model, params, log, dtype="float32", deterministic=True) as pool:
        yield lending(pool)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def opener(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineOpener]:
    with _server(inputs[0], tmp_path_factory.mktemp("logs") / "server.log") as opened:
        yield opened


def _learning(run: TrainingRun) -> TrainingRun:
    """Return the run with a gradient by the term of the entropy: a fresh model's attempts are all equally bad."""
    terms = {"terms": {"entropy": {"coefficient": 0.1}}}
    return replace(run, algorithm=Algorithm.model_validate(run.algorithm.model_dump() | terms))


def _run(inputs: tuple[Path, Path], out: Path, *, tokens: int = runs.MAX_NEW_TOKENS) -> TrainingRun:
    run = _learning(runs.training_run(inputs, out / "state", out, 4))
    return replace(
        run,
        training=run.training.model_copy(update={"staleness": 1}),
        rollout=run.rollout.model_copy(update={"max_new_tokens": tokens}),
    )


def test_a_run_is_the_same_after_an_interruption_and_with_slow_updates(
    inputs: tuple[Path, Path], opener: EngineOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halved, slow = (_run(inputs, tmp_path / name) for name in ("whole", "halved", "slow"))
    reported = runs.metrics_with(whole, opener)
    assert [metrics["rollout/staleness"] for metrics in reported] == [0, 1, 1, 1]
    assert [metrics[OUTSIDE] for metrics in reported] == [0.0] * 4, "the probe is of the weights that were handed over"
    assert all(metrics[LARGEST] < 1e-3 for metrics in reported)
    assert min(read_parquet(whole.metrics)["policy/grad_norm"].to_pylist()) > 0
    assert len(runs.metrics_with(halved, opener, stop=lambda step: step == 3)) == 3
    runs.metrics_with(halved, opener)
    assert runs.bytes_of(halved) == runs.bytes_of(whole)
    fast = PolicyUpdate.run

    def slowly(self: PolicyUpdate, *arguments: Any) -> Any:
        time.sleep(1.0)
        return fast(self, *arguments)

    monkeypatch.setattr(PolicyUpdate, "run", slowly)
    runs.metrics_with(slow, opener)
    assert runs.bytes_of(slow) == runs.bytes_of(whole)


def test_a_run_that_is_told_to_stop_while_the_server_samples_ends_at_once(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    def terminate(number: int, frame: Any) -> None:
        raise Terminated(128 + number)

    former = signal.signal(signal.SIGTERM, terminate)
    told, since = _run(inputs, tmp_path / "told", tokens=64), [0.0]

    def stop(step: int) -> bool:
        if step == 2:
            since[0] = time.monotonic()
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return False

    try:
        # a server of its own: an interrupted pool answers no other run
        with _server(inputs[0], tmp_path / "server.log") as opened:
            with pytest.raises(Terminated):
                runs.metrics_with(told, opened, stop)
            assert time.monotonic() - since[0] < 20
    finally:
        signal.signal(signal.SIGTERM, former)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_an_adapter_learns_is_checked_at_every_hand_over_and_is_the_same_after_an_interruption(
    inputs: tuple[Path, Path], opener: EngineOpener, tmp_path: Path
) -> None:
    """The server holds the merged weights."""
    whole, halved = (
        _learning(adapter_runs.with_adapter(runs.training_run(inputs, out / "state", out, 3)))
        for out in (tmp_path / "whole", tmp_path / "halved")
    )
    reported = runs.metrics_with(whole, opener)
    assert [metrics[OUTSIDE] for metrics in reported] == [0.0] * 3
    assert all(metrics[LARGEST] < 1e-3 and metrics[COMPARED] > 0 for metrics in reported)
    assert min(read_parquet(whole.metrics)["policy/grad_norm"].to_pylist()) > 0
    assert len({each.name for each in compare(whole.initial, whole.policy).differences if each.largest}) == 14
    assert len(runs.metrics_with(halved, opener, stop=lambda step: step == 3)) == 3
    assert not halved.policy.exists()
    runs.metrics_with(halved, opener)
    assert runs.bytes_of(halved) == runs.bytes_of(whole)
