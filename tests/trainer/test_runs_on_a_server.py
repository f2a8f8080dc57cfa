"""Runs of the trainer on one real server: ahead of the policy, with an adapter, interrupted and stopped."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.pools import pool_over
from tests.trainer import adapter_runs, runs
from tests.trainer.lending import lending

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.core.errors import Terminated
from dagrpo.engine.interface import EngineOpener
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.checks.logprob_agreement import PROBED_LARGEST, PROBED_OUTSIDE
from dagrpo.trainer.checks.weight_sync import COMPARED
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.tables import read_parquet

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def inputs(fresh_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(initial checkpoint, train split) with ten problems, of the model that the server has."""
    folder = tmp_path_factory.mktemp("inputs")
    convert(fresh_model, folder / "initial", Checkpoint())
    return folder / "initial", runs.make_split(folder)


@contextmanager
def _lent(server: SGLangServer, model: Path) -> Iterator[EngineOpener]:
    """Open an engine over the server for several runs in turn: each loads its own weights first."""
    with pool_over([server.endpoint], model, keeps_all=True) as pool:
        yield lending(pool)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def opener(fresh_server: SGLangServer, fresh_model: Path) -> Iterator[EngineOpener]:
    with _lent(fresh_server, fresh_model) as opened:
        yield opened


def _learning(run: TrainingRun) -> TrainingRun:
    """Return the run with a gradient by the term of the entropy: a fresh model's attempts are all equally bad.

    Its steps are small enough for the gate on how far a policy moves.
    """
    terms = {"entropy": {"coefficient": 0.1}}
    return runs.changed(run, algorithm={"terms": terms}, training={"learning_rate": 1e-3})


def _run(inputs: tuple[Path, Path], out: Path, *, tokens: int = runs.MAX_NEW_TOKENS) -> TrainingRun:
    run = _learning(runs.training_run(inputs, out / "state", out, 4))
    return runs.changed(run, training={"staleness": 1}, rollout={"max_new_tokens": tokens})


@pytest.mark.nightly
def test_a_run_is_the_same_after_an_interruption_and_with_slow_updates(
    inputs: tuple[Path, Path], opener: EngineOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halved, slow = (_run(inputs, tmp_path / name) for name in ("whole", "halved", "slow"))
    reported = runs.metrics_with(whole, opener)
    assert [metrics["rollout/staleness"] for metrics in reported] == [0, 1, 1, 1]
    assert [metrics[PROBED_OUTSIDE] for metrics in reported] == [0.0] * 4, (
        "the probe is of the weights that were handed over"
    )
    assert all(metrics[PROBED_LARGEST] < 1e-3 for metrics in reported)
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


@pytest.mark.nightly
def test_aborted_answers_are_continued_by_the_next_weights(
    inputs: tuple[Path, Path], opener: EngineOpener, tmp_path: Path
) -> None:
    """Killed after two steps. Groups of two differ in length: of four, nearly all have an answer of the greatest length."""
    run, prompts, samples = _run(inputs, tmp_path, tokens=160), 2, 2
    dynamic = {"oversampling": 3.0, "max_aborts": 2, "spread_of": None, "partial_rollouts": True}
    changes = {"staleness": 0, "prompts_per_step": prompts, "samples_per_prompt": samples, "dynamic_sampling": dynamic}
    run = runs.changed(run, training=changes, rollout={"deterministic": False})
    runs.metrics_with(run, opener, stop=lambda step: step == 2)
    reported = runs.metrics_with(run, opener)
    rows = [
        row
        for step in range(1, 5)
        for row in read_parquet(run.rollouts.with_name(f"step_{step:05d}.parquet")).to_pylist()
    ]
    began = {
        sampling_seed(run.seed, "rollout", step, position, sample): f"step_{step}"
        for step in range(4)
        for position in range(3 * prompts)
        for sample in range(samples)
    }
    mixed = [row for row in rows if row["earlier_versions"] and row["weight_version"] == f"step_{row['step'] - 1}"]
    assert mixed
    of_others = 0.0
    for row in mixed:
        versions = [version for version, _ in row["earlier_versions"]]
        assert versions[0] == began[row["sampling_seed"]]
        assert row["weight_version"] not in versions
        old = sum(tokens for _, tokens in row["earlier_versions"])
        assert 0 < old < row["completion_tokens"]
        if not row["discarded"]:
            differences = [abs(each) for each in row["logprob_differences"]]
            assert max(differences[old:]) < 0.001, "the trainer's weights sampled these"
            of_others = max(of_others, *differences[:old])
    assert of_others > 0.001, "other weights sampled those"
    assert all(metrics["gate/rollout_outside_fraction"] < 0.01 for metrics in reported)


@pytest.mark.usefixtures("stage_handlers")
def test_a_run_that_is_told_to_stop_while_the_server_samples_ends_at_once(
    inputs: tuple[Path, Path], fresh_server: SGLangServer, fresh_model: Path, tmp_path: Path
) -> None:
    told = _run(inputs, tmp_path / "told", tokens=64)

    def stop(step: int) -> bool:
        if step == 2:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return False

    # An interrupted engine answers no other run.
    with _lent(fresh_server, fresh_model) as opened, pytest.raises(Terminated):
        runs.metrics_with(told, opened, stop)


def test_an_adapter_learns_is_checked_at_every_weight_sync_and_is_the_same_after_an_interruption(
    inputs: tuple[Path, Path], opener: EngineOpener, tmp_path: Path
) -> None:
    """The server holds the merged weights."""
    whole, halved = (
        _learning(adapter_runs.with_adapter(runs.training_run(inputs, out / "state", out, 3)))
        for out in (tmp_path / "whole", tmp_path / "halved")
    )
    reported = runs.metrics_with(whole, opener)
    assert [metrics[PROBED_OUTSIDE] for metrics in reported] == [0.0] * 3
    assert all(metrics[PROBED_LARGEST] < 1e-3 and metrics[COMPARED] > 0 for metrics in reported)
    assert min(read_parquet(whole.metrics)["policy/grad_norm"].to_pylist()) > 0
    assert len({each.name for each in compare(whole.initial, whole.policy).differences if each.largest}) == 28
    assert len(runs.metrics_with(halved, opener, stop=lambda step: step == 3)) == 3
    assert not halved.policy.exists()
    runs.metrics_with(halved, opener)
    assert runs.bytes_of(halved) == runs.bytes_of(whole)
