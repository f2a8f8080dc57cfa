"""Whether code draws from the random numbers that all attempts share, whatever generator stands behind them."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.random import mtrand

from dagrpo_agents.environment import SharedRandom

GENERATORS = [np.random.MT19937, np.random.PCG64, np.random.Philox, np.random.SFC64]


@pytest.fixture
def generator() -> Iterator[None]:
    """Puts numpy's own back."""
    before = mtrand.get_bit_generator()
    yield
    mtrand.set_bit_generator(before)


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.usefixtures("generator")
def test_a_draw_from_any_generator_is_told_and_a_look_is_not(
    kind: Callable[[int], np.random.BitGenerator], capsys: pytest.CaptureFixture[str]
) -> None:
    mtrand.set_bit_generator(kind(1))
    with SharedRandom("my_lab.envs:World").watched():
        np.random.default_rng(3).random()
    assert capsys.readouterr().err == ""
    with SharedRandom("my_lab.envs:World").watched():
        np.random.random(5)  # more than Philox keeps in hand
    assert "my_lab.envs:World draws random numbers" in " ".join(capsys.readouterr().err.split())


def test_code_that_draws_and_raises_is_told_of_too() -> None:
    shared = SharedRandom("my_lab.envs:Dice")

    def draw_and_raise() -> None:
        with shared.watched():
            random.random()
            raise KeyError

    with pytest.raises(KeyError):
        draw_and_raise()
    assert shared._has_warned
