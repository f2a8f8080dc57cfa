"""Batches that are sampled prefetch: their order, their lag, and how what goes wrong reaches the trainer. No engine here."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrpo.checkpoints.tensors import StateTensors, Tensors
from dagrpo.core.errors import UserError
from dagrpo.engine.errors import ServerError
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.sampling.prefetch import PendingBatches, Prefetch, steps_in_sampler
from dagrpo.trainer.weight_sync import copy_in_memory


def _batch(step: int) -> Rollouts:
    return Rollouts(step=step, group_size=1, graded=(), rewards=torch.zeros(0), components={})


def _weights(finished: int) -> Tensors:
    return StateTensors({"weight": torch.tensor([float(finished)])})


@dataclass
class _Engine:
    """Notes what samples which batch; an update and a batch may be as slow as a test wants."""

    loaded: int = 0
    at_work: bool = False
    made: list[tuple[int, int]] = field(default_factory=list)  # (step, finished steps in the weights)
    trained: int = 0
    most_ahead: int = 0
    seconds: Callable[[int], float] = lambda step: 0.0
    fails_at: int | None = None
    interrupted: threading.Event = field(default_factory=threading.Event)

    def make(self, step: int, clock: Clock) -> Rollouts:
        self.at_work, version = True, self.loaded
        if self.interrupted.wait(self.seconds(step)):
            raise ServerError("interrupted")
        if step == self.fails_at:
            raise UserError(f"step {step + 1}: nothing can be learned")
        assert self.loaded == version, "the weights changed under a batch"
        self.made.append((step, version))
        self.most_ahead = max(self.most_ahead, step - self.trained)
        self.at_work = False
        return _batch(step)

    def load(self, finished: int) -> None:
        assert not self.at_work, "the weights changed under a batch"
        self.loaded = finished


def _prefetch(
    engine: _Engine, staleness: int, steps: int, first: int = 0, pending: PendingBatches | None = None
) -> Prefetch:
    prefetch = Prefetch(
        engine.make,
        staleness=staleness,
        steps=steps,
        first=first,
        interrupt=engine.interrupted.set,
        pending=pending or PendingBatches(),
    )
    engine.load(first)
    prefetch.remember(first, _weights(first))
    return prefetch


def _train(
    engine: _Engine, prefetch: Prefetch, first: int, steps: int, update: Callable[[int], float] = lambda step: 0.0
) -> None:
    """What the loop does with it."""
    for step in range(first, steps):
        prefetch.start(step)
        assert prefetch.take(step).step == step
        time.sleep(update(step))
        assert prefetch.finish() is None
        engine.trained = step + 1
        if step + 1 < steps:
            engine.load(step + 1)
            prefetch.remember(step + 1, _weights(step + 1))


@settings(deadline=None, max_examples=30)
@given(
    staleness=st.integers(1, 4),
    steps=st.integers(1, 7),
    sampling=st.lists(st.sampled_from([0.0, 0.003]), min_size=7, max_size=7),
    update=st.lists(st.sampled_from([0.0, 0.003]), min_size=7, max_size=7),
)
def test_each_batch_is_made_once_in_order_by_the_weights_of_the_lag_whatever_takes_how_long(
    staleness: int, steps: int, sampling: list[float], update: list[float]
) -> None:
    engine = _Engine(seconds=sampling.__getitem__)
    _train(engine, _prefetch(engine, staleness, steps), 0, steps, update.__getitem__)
    assert engine.made == [(step, max(0, step - staleness)) for step in range(steps)]
    assert engine.most_ahead <= staleness


def test_the_lag_is_that_of_the_documentation() -> None:
    assert [steps_in_sampler(step, 0) for step in range(4)] == [0, 1, 2, 3]
    assert [steps_in_sampler(step, 1) for step in range(4)] == [0, 0, 1, 2]
    assert [steps_in_sampler(step, 3) for step in range(6)] == [0, 0, 0, 0, 1, 2]


def test_the_next_batch_is_sampled_while_the_policy_is_updated() -> None:
    both = threading.Barrier(2, timeout=60)  # breaks if one waits for the other to end
    engine = _Engine(seconds=lambda step: 0.0 * both.wait() if step > 0 else 0.0)
    _train(engine, _prefetch(engine, 1, 5), 0, 5, lambda step: 0.0 * both.wait() if step < 4 else 0.0)
    assert not both.broken


def test_without_staleness_there_is_no_thread() -> None:
    prefetch = _prefetch(_Engine(), 0, 2)
    prefetch.start(0)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    assert prefetch.finish() is None
    assert prefetch.pending(2) == PendingBatches()


def test_what_making_a_batch_raises_is_raised_where_it_is_asked_for_and_not_before() -> None:
    engine = _Engine(fails_at=1)
    prefetch = _prefetch(engine, 1, 4)
    prefetch.start(0)
    assert prefetch.take(0).step == 0
    error = prefetch.finish()
    assert isinstance(error, UserError)
    with pytest.raises(UserError, match="step 2: nothing can be learned"):
        prefetch.take(1)


def test_a_thread_that_is_told_to_end_does_so_at_once_and_leaves_what_was_whole() -> None:
    engine = _Engine(seconds=lambda step: 0.0 if step < 2 else 600.0)
    prefetch = _prefetch(engine, 2, 9)
    prefetch.start(0)
    prefetch.take(1)
    prefetch.end()
    assert prefetch.finish() is None  # it is no failure
    left = prefetch.pending(1)
    assert sorted(left.batches) == [1]
    assert sorted(left.samplers) == [0]


@pytest.mark.parametrize(("staleness", "broken"), [(1, 1), (1, 5), (2, 3), (3, 1), (3, 5)])
def test_what_was_broken_off_is_made_up_by_the_weights_that_it_was_left_to(staleness: int, broken: int) -> None:
    """The run is told to stop in the batch `broken`, goes on, and is extended by three steps at its end."""
    engine = _Engine(seconds=lambda step: 600.0 if step == broken else 0.0)
    prefetch = _prefetch(engine, staleness, 6)
    finished = max(0, broken - staleness) + 1  # the update beside it is finished
    for step in range(finished):
        prefetch.start(step)
        prefetch.take(step)
        if step + 1 < finished:
            assert prefetch.finish() is None
            engine.load(step + 1)
            prefetch.remember(step + 1, _weights(step + 1))
    while not (engine.at_work and len(engine.made) == broken):
        time.sleep(0.001)
    prefetch.end()
    first, left = _run_on(finished, prefetch.pending(finished), staleness, 6)
    second, _ = _run_on(6, left, staleness, 9)
    made = engine.made + first + second
    assert made == [(step, max(0, step - staleness)) for step in range(9)]


def _run_on(
    first: int, pending: PendingBatches, staleness: int, steps: int
) -> tuple[list[tuple[int, int]], PendingBatches]:
    engine = _Engine()
    prefetch = _prefetch(engine, staleness, steps, first, pending)
    for step in prefetch.missing(first):
        finished, weights = prefetch.sampler(step)
        assert weights.read("weight").item() == finished
        engine.load(finished)
        prefetch.make_up(step)
    engine.load(first)
    _train(engine, prefetch, first, steps)
    return engine.made, prefetch.pending(steps)


def test_weights_that_are_held_do_not_change_with_the_policy() -> None:
    values: dict[str, Any] = {"weight": torch.zeros(3), "count": torch.tensor([2])}
    copied = copy_in_memory(StateTensors(values))
    values["weight"] += 1
    assert copied.read("weight").tolist() == [0.0] * 3
    assert copied.specs == StateTensors(values).specs
