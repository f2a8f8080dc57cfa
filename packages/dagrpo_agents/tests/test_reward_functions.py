"""Reward functions of the user's own: whatever they return is a number, or told in a sentence."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from dagrpo.core.errors import UserError
from dagrpo.tools import InfrastructureFailure
from dagrpo_agents.environment import rewards_by


class NoNumber:
    """Something that only says so when it is asked."""

    def __float__(self) -> float:
        raise RuntimeError("no number")


def lazy(**row: Any) -> Iterator[float]:
    """Raises when what it returned is read."""
    nothing: dict[str, float] = {}
    yield nothing["nothing"]


def odd(**row: Any) -> list[Any]:
    """Returns one object in its list."""
    return [NoNumber()]


def test_what_raises_only_when_it_is_read_is_a_failure_of_the_function() -> None:
    with pytest.raises(InfrastructureFailure, match="lazy raised KeyError: 'nothing'"):
        asyncio.run(rewards_by({"lazy": lazy}, object(), {}, []))


def test_an_object_that_is_no_number_is_told_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"odd returns .* for one attempt: return a list of one finite number"):
        asyncio.run(rewards_by({"odd": odd}, object(), {}, []))
