"""Batches that are sampled ahead: their order, their lag, and how what goes wrong reaches the trainer. No engine here."""

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
from dagrpo.trainer.batches.prefetch import Ahead, Untrained, steps_in_sampler
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.history import Clock
from dagrpo.trainer.sync.weight_sync import copy_in_memory


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


def _ahead(engine: _Engine, staleness: int, steps: int, first: int = 0, untrained: Untrained | None = None) -> Ahead:
    ahead = Ahead(
        engine.make,
        lambda: {"position": len(engine.made)},
        staleness=staleness,
        steps=steps,
        first=first,
        interrupt=engine.interrupted.set,
        untrained=untrained or Untrained(),
    )
    engine.load(first)
    ahead.remember(first, _weights(first))
    return ahead


def _train(
    engine: _Engine, ahead: Ahead, first: int, steps: int, update: Callable[[int], float] = lambda step: 0.0
) -> None:
    """What the loop does with it."""
    for step in range(first, steps):
        ahead.start(step)
        assert ahead.take(step, Clock()).step == step
        time.sleep(update(step))
        if not ahead.finish():
            ahead.require_sound()
        engine.trained = step + 1
        if step + 1 < steps:
            engine.load(step + 1)
            ahead.remember(step + 1, _weights(step + 1))
        ahead.trained(step)


@settings(deadline=None, max_examples=30)
@given(
    staleness=st.integers(0, 4),
    steps=st.integers(1, 7),
    sampling=st.lists(st.sampled_from([0.0, 0.003]), min_size=7, max_size=7),
    update=st.lists(st.sampled_from([0.0, 0.003]), min_size=7, max_size=7),
)
def test_each_batch_is_made_once_in_order_by_the_weights_of_the_lag_whatever_takes_how_long(
    staleness: int, steps: int, sampling: list[float], update: list[float]
) -> None:
    engine = _Engine(seconds=sampling.__getitem__)
    _train(engine, _ahead(engine, staleness, steps), 0, steps, update.__getitem__)
    assert engine.made == [(step, max(0, step - staleness)) for step in range(steps)]
    assert engine.most_ahead <= staleness


def test_a_run_that_begins_has_left_nothing_over() -> None:
    assert _ahead(_Engine(), 3, 9).missing(0) == []


def test_the_lag_is_that_of_the_documentation() -> None:
    assert [steps_in_sampler(step, 0) for step in range(4)] == [0, 1, 2, 3]
    assert [steps_in_sampler(step, 1) for step in range(4)] == [0, 0, 1, 2]
    assert [steps_in_sampler(step, 3) for step in range(6)] == [0, 0, 0, 0, 1, 2]


def test_the_next_batch_is_sampled_while_the_policy_is_updated() -> None:
    engine = _Engine(seconds=lambda step: 0.1)
    started = time.perf_counter()
    _train(engine, _ahead(engine, 1, 5), 0, 5, lambda step: 0.1)
    assert time.perf_counter() - started < 0.9  # 0.6, and one after the other 1.0


def test_without_staleness_there_is_no_thread() -> None:
    class Here(_Engine):
        def make(self, step: int, clock: Clock) -> Rollouts:
            assert threading.current_thread() is threading.main_thread()
            return super().make(step, clock)

    engine = Here()
    ahead = _ahead(engine, 0, 2)
    _train(engine, ahead, 0, 2)
    assert ahead.untrained(2) == Untrained()


def test_what_making_a_batch_raises_is_raised_where_it_is_asked_for_and_not_before() -> None:
    engine = _Engine(fails_at=1)
    ahead = _ahead(engine, 1, 4)
    ahead.start(0)
    assert ahead.take(0, Clock()).step == 0
    assert not ahead.finish()
    with pytest.raises(UserError, match="step 2: nothing can be learned"):
        ahead.require_sound()
    with pytest.raises(UserError, match="step 2: nothing can be learned"):
        ahead.take(1, Clock())


def test_a_thread_that_is_told_to_end_does_so_at_once_and_leaves_what_was_whole() -> None:
    engine = _Engine(seconds=lambda step: 0.0 if step < 2 else 600.0)
    ahead = _ahead(engine, 2, 9)
    ahead.start(0)
    ahead.take(1, Clock())
    started = time.perf_counter()
    ahead.end()
    assert time.perf_counter() - started < 5
    assert ahead.finish() is False
    ahead.require_sound()  # it is no failure
    left = ahead.untrained(1)
    assert sorted(left.batches) == [0, 1]
    assert sorted(left.samplers) == [0]
    assert ahead.drawn(1) == {"position": 2}


@pytest.mark.parametrize("staleness", [1, 2, 3])
@pytest.mark.parametrize("broken", range(1, 6))
def test_what_was_broken_off_is_made_up_by_the_weights_that_it_was_left_to(staleness: int, broken: int) -> None:
    """The run is told to stop in the batch `broken`, goes on, and is extended by three steps at its end."""
    engine = _Engine(seconds=lambda step: 600.0 if step == broken else 0.0)
    ahead = _ahead(engine, staleness, 6)
    finished = max(0, broken - staleness) + 1  # the update beside it is finished
    for step in range(finished):
        ahead.start(step)
        ahead.take(step, Clock())
        if step + 1 < finished:
            assert ahead.finish()
            engine.load(step + 1)
            ahead.remember(step + 1, _weights(step + 1))
            ahead.trained(step)
    while not (engine.at_work and len(engine.made) == broken):
        time.sleep(0.001)
    ahead.end()
    ahead.trained(finished - 1)
    first, left = _run_on(finished, ahead.untrained(finished), staleness, 6)
    second, _ = _run_on(6, left, staleness, 9)
    made = engine.made + first + second
    assert made == [(step, max(0, step - staleness)) for step in range(9)]


def _run_on(first: int, untrained: Untrained, staleness: int, steps: int) -> tuple[list[tuple[int, int]], Untrained]:
    engine = _Engine()
    ahead = _ahead(engine, staleness, steps, first, untrained)
    for step in ahead.missing(first):
        finished, weights = ahead.sampler(step)
        assert weights.read("weight").item() == finished
        engine.load(finished)
        ahead.make_up(step)
    engine.load(first)
    _train(engine, ahead, first, steps)
    return engine.made, ahead.untrained(steps)


def test_weights_that_are_held_do_not_change_with_the_policy() -> None:
    values: dict[str, Any] = {"weight": torch.zeros(3), "count": torch.tensor([2])}
    copied = copy_in_memory(StateTensors(values))
    values["weight"] += 1
    assert copied.read("weight").tolist() == [0.0] * 3
    assert copied.specs == StateTensors(values).specs
