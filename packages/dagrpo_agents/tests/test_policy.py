"""Servers of `dagrpo serve` start at the same time."""

import threading

import pytest

from dagrpo.core.errors import UserError
from dagrpo_agents.serve.policy import call_together


def test_each_call_is_made_while_the_others_run_and_results_keep_their_order() -> None:
    all_there = threading.Barrier(3, timeout=20)

    def call(number: int) -> int:
        all_there.wait()
        return number

    assert call_together([lambda: call(1), lambda: call(2), lambda: call(3)]) == [1, 2, 3]


def test_an_error_is_raised_while_another_call_still_waits() -> None:
    ready = threading.Event()

    def fails() -> bool:
        raise UserError("There is no room.")

    with pytest.raises(UserError, match="no room"):
        call_together([ready.wait, fails])
    ready.set()
