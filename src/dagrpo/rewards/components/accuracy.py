"""accuracy: the price of the verdict."""

from collections.abc import Mapping

from pydantic import Field

from dagrpo.core.section import Factor
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import Verdict
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """A price for the verdict on the answer."""

    correct: Factor = Field(1.0, description="Price of a right answer.")
    wrong: Factor = Field(0.0, description="Price of a wrong answer.")
    missing: Factor = Field(0.0, description="Price of a completion without an answer.")
    unverifiable: Factor = Field(
        0.0, description="Price of an answer that could not be compared within reward.verify_seconds."
    )


def accuracy(graded: GradedTrajectory, config: Config) -> float:
    """Return the price of the verdict."""
    prices: Mapping[Verdict, float] = {
        "right": config.correct,
        "wrong": config.wrong,
        "missing": config.missing,
        "unverifiable": config.unverifiable,
    }
    return prices[graded.score.verdict]


def limits(config: Config) -> tuple[float, float]:
    """Return the lowest price and the highest."""
    prices = (config.correct, config.wrong, config.missing, config.unverifiable)
    return min(prices), max(prices)


COMPONENT = Component(config=Config, function=accuracy, limits=limits)
